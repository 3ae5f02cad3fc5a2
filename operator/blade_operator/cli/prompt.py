"""The first request to a service: streams a chat completion to a prompt, or embeds a text."""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Callable

import httpx

from blade_operator.cli.errors import CommandError
from blade_protocol.paths import CHAT_COMPLETIONS, EMBEDDINGS, RERANK

MAX_TOKENS = 256
SHOWN_NUMBERS = 4
API_KEY = "OPENAI_API_KEY"


async def stream_chat(url: str, prompt: str, write: Callable[[str], None], *, with_key: bool = False) -> str:
    """Stream the completion of ``prompt``, reasoning first, into ``write``; returns a line of figures.

    ``with_key``: send the API key of the environment, because the service has keys. Without keys the router would pass
    it on to its engines.

    Raises:
        CommandError: the service did not respond properly.
    """
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    }
    start = time.monotonic()
    first: float | None = None
    tokens = 0
    try:
        async with (
            _client(with_key) as client,
            client.stream("POST", url + CHAT_COMPLETIONS.removeprefix("/v1"), json=body) as response,
        ):
            if not response.is_success:
                text = (await response.aread()).decode(errors="replace")
                raise _refused(response.status_code, text)
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise CommandError(f"the answer broke off: {chunk['error']['message']}")
                tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
                deltas = [choice["delta"] for choice in chunk["choices"]]
                text = "".join(
                    (delta.get("reasoning_content") or "") + (delta.get("content") or "") for delta in deltas
                )
                if text:
                    first = first or time.monotonic()
                    write(text)
    except httpx.HTTPError as error:
        raise _unreachable(url, error) from error
    end = time.monotonic()
    if first is None:
        return "an empty answer"
    speed = f", {(tokens - 1) / (end - first):.0f} tokens/s" if tokens > 1 and end > first else ""
    return f"{tokens} tokens, the first after {(first - start) * 1000:.0f} ms{speed}"


async def embed(url: str, text: str, write: Callable[[str], None], *, with_key: bool = False) -> str:
    """Have ``{url}/embeddings`` turn ``text`` into numbers, and ``write`` the first of them; returns a line of figures.

    ``with_key`` is that of `stream_chat`.

    Raises:
        CommandError: the service did not respond properly.
    """
    start = time.monotonic()
    try:
        async with _client(with_key) as client:
            response = await client.post(url + EMBEDDINGS.removeprefix("/v1"), json={"input": text})
    except httpx.HTTPError as error:
        raise _unreachable(url, error) from error
    if not response.is_success:
        raise _refused(response.status_code, response.text)
    numbers = response.json()["data"][0]["embedding"]
    write("[" + ", ".join(f"{number:.4f}" for number in numbers[:SHOWN_NUMBERS]) + ", ...]")
    tokens = response.json()["usage"]["prompt_tokens"]
    return f"{len(numbers)} numbers for {tokens} tokens, after {(time.monotonic() - start) * 1000:.0f} ms"


async def rerank(url: str, text: str, write: Callable[[str], None], *, with_key: bool = False) -> str:
    """Have ``{url}/rerank`` score ``text`` as the answer to itself, and ``write`` the score; returns a line of figures.

    ``with_key`` is that of `stream_chat`.

    Raises:
        CommandError: the service did not respond properly.
    """
    start = time.monotonic()
    try:
        async with _client(with_key) as client:
            response = await client.post(url + RERANK.removeprefix("/v1"), json={"query": text, "documents": [text]})
    except httpx.HTTPError as error:
        raise _unreachable(url, error) from error
    if not response.is_success:
        raise _refused(response.status_code, response.text)
    body = response.json()
    write(f"{body['results'][0]['relevance_score']:.4f}")
    return f"a score for {body['usage']['prompt_tokens']} tokens, after {(time.monotonic() - start) * 1000:.0f} ms"


def api_key() -> str | None:
    """The API key of the environment, as OpenAI's clients take it from there."""
    return os.environ.get(API_KEY)


def _client(with_key: bool) -> httpx.AsyncClient:
    """An HTTP client with what OpenAI's clients take from the environment: certificate authorities and the API key."""
    key = api_key() if with_key else None
    return httpx.AsyncClient(
        timeout=httpx.Timeout(10.0, read=300.0),
        trust_env=False,
        headers={"authorization": f"Bearer {key}"} if key else {},
        verify=ssl.create_default_context(),  # it reads SSL_CERT_FILE
    )


def _unreachable(url: str, error: httpx.HTTPError) -> CommandError:
    return CommandError(f"{url} did not answer: {error or type(error).__name__}")


def _refused(status: int, text: str) -> CommandError:
    hint = f"; set {API_KEY} to one of its keys" if status == httpx.codes.UNAUTHORIZED else ""
    return CommandError(f"the service answered {status}: {text}{hint}")
