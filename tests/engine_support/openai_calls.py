"""One request through the official client in each of four ways: sync or async, whole or streamed.

Whatever the way, the response comes in one form, so that a test says once what a parameter must do.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import openai
import pytest
from engine_support.server_process import ServerProcess


class Way(NamedTuple):
    asynchronous: bool
    streaming: bool

    def __str__(self) -> str:
        return f"{'async' if self.asynchronous else 'sync'}-{'stream' if self.streaming else 'whole'}"


WAYS: Final = [Way(asynchronous, streaming) for asynchronous in (False, True) for streaming in (False, True)]
each_way: Final = pytest.mark.parametrize("way", WAYS, ids=str)


@dataclass
class Output:
    """One choice."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    tokens: list[tuple[str, float]] = field(default_factory=list)
    """Text and log-probability of each token, where requested."""
    top: list[int] = field(default_factory=list)
    """How many likely tokens each position names."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Name and arguments of each function called."""


@dataclass
class Reply:
    """What a request brought."""

    outputs: list[Output]
    usage: Any = None
    raw: Sequence[Any] = ()
    """The client's objects: one, or the chunks of the stream."""

    @property
    def output(self) -> Output:
        (only,) = self.outputs
        return only

    @property
    def text(self) -> str:
        return self.output.text


def chat(server: ServerProcess, way: Way, **fields: Any) -> Reply:
    """``POST /v1/chat/completions``; fields the client has no argument for travel in ``extra_body``."""
    given = {"model": "tiny-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, **fields}
    if way.streaming:
        given.setdefault("stream_options", {"include_usage": True})
    return _reply(_send(server, way, lambda client: client.chat.completions.create, given), _take_chat)


def completion(server: ServerProcess, way: Way, **fields: Any) -> Reply:
    """``POST /v1/completions``"""
    given = {"model": "tiny-chat", "prompt": "hello", "max_tokens": 8, **fields}
    if way.streaming:
        given.setdefault("stream_options", {"include_usage": True})
    return _reply(_send(server, way, lambda client: client.completions.create, given), _take_completion)


def response(server: ServerProcess, way: Way, **fields: Any) -> Reply:
    """``POST /v1/responses``; ``usage`` and the final ``response`` (the last of ``raw``)."""
    given = {"model": "tiny-chat", "input": "hello", "max_output_tokens": 8, **fields}
    raw = _send(server, way, lambda client: client.responses.create, given)
    final = raw[-1].response if way.streaming else raw[0]
    return Reply([], final.usage, [*raw, final])


@functools.cache
def client(url: str) -> openai.OpenAI:
    # Without certificates: reading them takes longer than most requests here.
    http = openai.DefaultHttpxClient(verify=False)
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60, http_client=http)


def async_client(url: str) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60, http_client=http)


def _send(
    server: ServerProcess, way: Way, method: Callable[[Any], Callable[..., Any]], given: dict[str, Any]
) -> list[Any]:
    """All objects that come."""
    blocking = method(client(server.url))
    known = inspect.signature(blocking).parameters
    fields = {name: value for name, value in given.items() if name in known}
    fields["extra_body"] = {name: value for name, value in given.items() if name not in known}
    if way.streaming:
        fields["stream"] = True
    if not way.asynchronous:
        found = blocking(**fields)
        return list(found) if way.streaming else [found]

    async def send() -> list[Any]:
        async with async_client(server.url) as each:
            found = await method(each)(**fields)
            return [chunk async for chunk in found] if way.streaming else [found]

    return asyncio.run(send())


def _reply(raw: list[Any], take: Callable[[Output, Any], None]) -> Reply:
    outputs: dict[int, Output] = {}
    usage = None
    for chunk in raw:
        for choice in chunk.choices:
            output = outputs.setdefault(choice.index, Output())
            take(output, choice)
            if choice.finish_reason is not None:
                assert output.finish_reason is None
                output.finish_reason = choice.finish_reason
        usage = chunk.usage or usage
    return Reply([outputs[index] for index in range(len(outputs))], usage, raw)


def _take_chat(output: Output, choice: Any) -> None:
    message = choice.delta if hasattr(choice, "delta") else choice.message
    output.text += message.content or ""
    output.reasoning += getattr(message, "reasoning_content", None) or ""
    for call in message.tool_calls or []:
        index = getattr(call, "index", len(output.calls))
        if index == len(output.calls):
            output.calls.append((call.function.name, ""))
        name, arguments = output.calls[index]
        output.calls[index] = (name, arguments + (call.function.arguments or ""))
    if choice.logprobs is not None:
        output.tokens += [(entry.token, entry.logprob) for entry in choice.logprobs.content]
        output.top += [len(entry.top_logprobs) for entry in choice.logprobs.content]


def _take_completion(output: Output, choice: Any) -> None:
    output.text += choice.text
    if choice.logprobs is not None:
        output.tokens += list(zip(choice.logprobs.tokens, choice.logprobs.token_logprobs, strict=True))
        output.top += [len(top or ()) for top in choice.logprobs.top_logprobs]
