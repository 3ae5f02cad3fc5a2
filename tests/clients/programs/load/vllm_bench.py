"""`vllm bench serve`, which is part of vLLM and too big to install: what it sends and how it reads answers.

Each backend's payload, the rules by which it takes a stream apart, its look at the first model, at tokenizers, at
`/metrics` and at the profiler are those of vllm/benchmarks there; the version shown is aiohttp's, its HTTP client.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from case import BASE_URL, MODEL, ROOT_URL, Client

CLIENT = Client("vllm bench serve (its protocol)", "aiohttp")
PROMPT = "What does range do?"
TURN = f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
"""A prompt for completions. Its answer is long, and each token likely by far: the same in a batch as alone."""
TEXT = "Python has lists, tuples, sets and dictionaries."
REQUESTS, OUTPUT = 6, 64


@dataclass
class Outcome:
    """What the benchmark keeps of one request. Seconds."""

    success: bool = False
    error: str = ""
    text: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    first: float = 0.0
    gaps: list[float] = field(default_factory=list)
    latency: float = 0.0
    request_id: str = ""

    @property
    def per_token(self) -> float:
        """Of a token after the first: what `--goodput tpot:…` is held against."""
        return (self.latency - self.first) / (self.output_tokens - 1)


class Events:
    """Splits bytes as they come into the payloads of events, and takes what is left over if it is whole."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._rest = ""

    def add(self, data: bytes) -> list[str]:
        *whole, self._rest = (self._rest + self._decoder.decode(data.strip())).split("\n\n")
        if self._rest.startswith("data: "):
            try:
                if self._rest != "data: [DONE]":
                    json.loads(self._rest.removeprefix("data: "))
                whole, self._rest = [*whole, self._rest], ""
            except json.JSONDecodeError:
                pass
        return [event.strip().removeprefix("data: ") for event in whole if event.strip() and event[0] != ":"]


async def stream(session: aiohttp.ClientSession, path: str, payload: dict[str, Any], number: int = 0) -> Outcome:
    """Send a request of the backends `vllm`, `openai` and `openai-chat`, and time its chunks."""
    payload = {**payload, "stream": True, "stream_options": {"include_usage": True}}
    found, events = Outcome(), Events()
    started = last = time.perf_counter()
    headers = {"x-request-id": f"benchmark-{number}"}
    async with session.post(f"{BASE_URL}/{path}", json=payload, headers=headers) as response:
        found.request_id = response.headers.get("x-request-id", "")
        if response.status != 200:
            found.error = response.reason or ""
            return found
        async for data in response.content.iter_any():
            for event in events.add(data):
                if event == "[DONE]":
                    continue
                chunk = json.loads(event)
                now = time.perf_counter()
                if choices := chunk.get("choices"):
                    if found.first:
                        found.gaps.append(now - last)
                    found.first = found.first or now - started
                    last = now
                    found.text += choices[0].get("text") or choices[0].get("delta", {}).get("content") or ""
                elif usage := chunk.get("usage"):
                    found.output_tokens = usage.get("completion_tokens")
                    found.prompt_tokens = usage.get("prompt_tokens", 0)
    found.success, found.latency = bool(found.first), last - started
    return found


def completion(**extra: Any) -> dict[str, Any]:
    """What the backends `vllm` and `openai` send, with `--ignore-eos` and `--extra-body`."""
    sent = {"model": MODEL, "prompt": TURN, "repetition_penalty": 1.0, "max_tokens": OUTPUT, "logprobs": None}
    return {**sent, "ignore_eos": True, **extra}


def chat(content: Any, **extra: Any) -> dict[str, Any]:
    """What the backend `openai-chat` sends."""
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "max_completion_tokens": OUTPUT, "ignore_eos": True, **extra}


def checked(outcomes: list[Outcome], most_chunks: int) -> str:
    """All have succeeded, with the tokens that were asked for, timed."""
    for number, found in enumerate(outcomes):
        assert found.success, found.error
        assert found.request_id == f"benchmark-{number}"
        assert found.output_tokens == OUTPUT
        assert 0 < found.first <= found.latency
        assert 1 < len(found.gaps) + 1 <= most_chunks
        assert found.per_token > 0
    assert len({found.text for found in outcomes}) == 1  # temperature 0, or one seed
    assert "sequence of integers" in outcomes[0].text
    tokens = sum(found.prompt_tokens for found in outcomes)
    return f"{len(outcomes)} requests, {tokens} tokens in, {OUTPUT} out each: {outcomes[0].text[:40]!r}"


@CLIENT.case("first model, ready check")
async def ready() -> str:
    """Without `--model` it asks for the first, of which `root` names the tokenizer; then it sends one request."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{BASE_URL}/models") as response:
            response.raise_for_status()
            first = (await response.json())["data"][0]
        assert first["root"]
        found = await stream(session, "completions", completion(model=first["id"]))
    assert found.success, found.error
    return f"{first['id']}, root {first['root']}"


@CLIENT.case("completions, streaming")
async def completions() -> str:
    async with aiohttp.ClientSession() as session:
        texts = [stream(session, "completions", completion(temperature=0), number) for number in range(REQUESTS)]
        shown = checked(await asyncio.gather(*texts), OUTPUT + 1)
        by_id = await stream(session, "completions", completion(prompt=[60, 61, 62], logprobs=1))
        assert (by_id.prompt_tokens, by_id.output_tokens) == (3, OUTPUT)
    return shown


@CLIENT.case("chat, streaming")
async def chats() -> str:
    """The first chunk has the role only: the benchmark takes it for the first token."""
    parts = [{"type": "text", "text": PROMPT}]
    async with aiohttp.ClientSession() as session:
        body = chat(parts, temperature=0, chat_template_kwargs={"enable_thinking": False})
        outcomes = await asyncio.gather(*(stream(session, "chat/completions", body, n) for n in range(REQUESTS)))
        whole = await stream(session, "chat/completions", chat(PROMPT, temperature=0))
    assert whole.text == outcomes[0].text
    return checked(outcomes, OUTPUT + 2)


@CLIENT.case("embeddings")
async def embeddings() -> str:
    """The tokens of its report are those of `usage`."""
    counts = []
    async with aiohttp.ClientSession() as session:
        for batch in (PROMPT, [PROMPT, PROMPT]):
            payload = {"model": MODEL, "input": batch, "truncate_prompt_tokens": -1}
            async with session.post(f"{BASE_URL}/embeddings", json=payload) as response:
                assert response.status == 200, await response.text()
                counts.append((await response.json())["usage"]["prompt_tokens"])
    assert counts[1] == 2 * counts[0] > 0
    return f"{counts[0]} tokens in, twice that for two"


@CLIENT.case("tokenizer alignment")
async def tokens() -> str:
    """Random prompts are cut to their length by the server's tokenizer."""
    async with aiohttp.ClientSession(ROOT_URL, raise_for_status=True) as session:

        async def post(path: str, **body: Any) -> dict[str, Any]:
            async with session.post(path, json={"model": MODEL, **body}) as response:
                return await response.json()  # type: ignore[no-any-return]

        ids = (await post("/tokenize", prompt=TEXT, add_special_tokens=False))["tokens"]
        text = (await post("/detokenize", tokens=ids[:5]))["prompt"]
        again = (await post("/tokenize", prompt=text, add_special_tokens=False))["tokens"]
    assert again == ids[:5]
    return f"{len(ids)} tokens, cut to {text!r}"


@CLIENT.case("--lora-modules")
async def adapters() -> str:
    """The modules are sent as models: those that the server lists, and one that it has not."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{BASE_URL}/models") as response:
            listed = [model["id"] for model in (await response.json())["data"] if model["parent"]]
        for name in listed:
            assert (await stream(session, "completions", completion(model=name))).success
        missing = await stream(session, "completions", completion(model="no-such-module"))
    assert (missing.success, missing.error) == (False, "Not Found")
    return f"{len(listed)} adapters; an unknown one is {missing.error}"


@CLIENT.case("metrics, profiler")
async def operations() -> str:
    """Both are optional: it goes on without, when the server answers with an error rather than with something else."""
    async with aiohttp.ClientSession(ROOT_URL) as session:
        async with session.get("/metrics") as response:
            metrics, text = response.status, await response.text()
        if metrics == 200:  # an engine's own port; a router keeps its metrics to its admin port
            lines = [line.rsplit(None, 1) for line in text.splitlines() if line.startswith("vllm:spec_decode")]
            assert all(float(value) >= 0 for _, value in lines)
        else:
            assert (metrics, bool(json.loads(text)["error"]["message"])) == (404, True)
        async with session.post("/start_profile") as response:
            profiler = response.status
            assert (profiler, (await response.json())["error"]["type"]) == (404, "not_found_error")
    return f"/metrics {metrics}, /start_profile {profiler}: as a vLLM without a profiler"


if __name__ == "__main__":
    CLIENT.main()
