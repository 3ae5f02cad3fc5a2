"""SGLang's `bench_serving`, which is part of SGLang and too big to install: what it sends and how it reads answers.

The backends `vllm`, `vllm-chat`, `sglang-oai` and `sglang-oai-chat` are one for completions and one for chats. Every
line of a stream has to be an event with a choice: it asks for no usage chunk, and it cannot read the comments that a
server sends while a request waits for long. The version shown is aiohttp's, its HTTP client.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from case import BASE_URL, MODEL, ROOT_URL, Client

CLIENT = Client("SGLang bench_serving (its protocol)", "aiohttp")
PROMPT = "What does range do?"
TURN = f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n"
"""A prompt for completions. Its answer is long, and each token likely by far: the same in a batch as alone."""
REQUESTS, OUTPUT = 6, 64
EXTRA = {"top_k": 5, "min_p": 0.0}
"""As `--extra-request-body`."""


@dataclass
class Outcome:
    """What the benchmark keeps of one request. Seconds."""

    text: str = ""
    output_tokens: int = OUTPUT
    first: float = 0.0
    gaps: list[float] = field(default_factory=list)
    latency: float = 0.0


async def send(session: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Outcome:
    """Send a request and time the texts of its stream."""
    found, started = Outcome(), time.perf_counter()
    last = started
    payload = {"model": MODEL, "stream": True, "temperature": 0.0, "ignore_eos": True, **body}
    headers = {"x-smg-routing-key": "group-1"}  # --gsp-send-routing-key
    async with session.post(f"{BASE_URL}/{path}", json=payload, headers=headers) as response:
        assert response.status == 200, f"{response.reason}: {await response.text()}"
        if not payload["stream"]:
            answer = await response.json()
            choice = answer["choices"][0]
            found.text = choice["message"]["content"] if "message" in choice else choice["text"]
            found.output_tokens = answer["usage"]["completion_tokens"]
            return found
        async for line in response.content:
            event = line.strip().decode().removeprefix("data: ")
            if not event:
                continue
            found.latency = time.perf_counter() - started
            if event == "[DONE]":
                continue
            chunk = json.loads(event)
            choice = chunk["choices"][0]
            if text := choice["text"] if "text" in choice else choice["delta"].get("content"):
                now = time.perf_counter()
                if found.first:
                    found.gaps.append(now - last)
                found.first, last = found.first or now - started, now
                found.text += text
            found.output_tokens = (chunk.get("usage") or {}).get("completion_tokens", found.output_tokens)
    return found


async def compared(path: str, body: dict[str, Any]) -> str:
    """The streams of a few concurrent requests are alike, and like an answer without a stream (`--disable-stream`)."""
    async with aiohttp.ClientSession() as session:
        outcomes = await asyncio.gather(*(send(session, path, body) for _ in range(REQUESTS)))
        whole = await send(session, path, {**body, "stream": False})
    assert whole.output_tokens == OUTPUT
    assert "sequence of integers" in whole.text
    for found in outcomes:
        assert found.text == whole.text
        assert 0 < found.first <= found.latency
        assert len(found.gaps) < OUTPUT  # none where a busy server sends all at once
    return f"{REQUESTS} requests, {OUTPUT} tokens out each: {whole.text[:40]!r}"


@CLIENT.case("completions, streaming")
async def completions() -> str:
    return await compared("completions", {"prompt": TURN, "best_of": 1, "max_tokens": OUTPUT, **EXTRA})


@CLIENT.case("completions of token ids")
async def ids() -> str:
    """`--tokenize-prompt`."""
    async with aiohttp.ClientSession(ROOT_URL) as session:
        async with session.post("/tokenize", json={"model": MODEL, "prompt": TURN}) as response:
            tokens = (await response.json())["tokens"]
    return await compared("completions", {"prompt": tokens, "best_of": 1, "max_tokens": OUTPUT})


@CLIENT.case("chat, streaming")
async def chats() -> str:
    messages = [{"role": "user", "content": PROMPT}]
    return await compared("chat/completions", {"messages": messages, "max_completion_tokens": OUTPUT, **EXTRA})


@CLIENT.case("model, adapter, cache")
async def around() -> str:
    """The first model is asked for; an adapter is named twice; where the cache cannot be emptied, it goes on."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{BASE_URL}/models") as response:
            model = (await response.json())["data"][0]["id"]
        adapter = {"model": model, "lora_path": model, "prompt": TURN, "best_of": 1, "max_tokens": OUTPUT}
        found = await send(session, "completions", adapter)
        async with session.post(f"{ROOT_URL}/flush_cache") as response:
            assert (response.status, (await response.json())["error"]["type"]) == (404, "not_found_error")
    assert found.text
    return f"{model}; /flush_cache 404"


if __name__ == "__main__":
    CLIENT.main()
