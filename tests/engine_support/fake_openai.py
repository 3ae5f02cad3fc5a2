"""A small OpenAI server for tests of the benchmark: responds by a script, well or badly."""

from __future__ import annotations

import asyncio
import json
import ssl
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ReceivedRequest:
    """One request as the server got it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def text(self) -> str:
        if "prompt" in self.body:
            return str(self.body["prompt"])
        return " ".join(message["content"] for message in self.body["messages"])


Script = Callable[[ReceivedRequest, Writer], Awaitable[None]]
"""Writes the whole response."""


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    """A chunk of a chat completion."""
    content = {"role": "assistant", "content": ""} if text is None else {"content": text}
    return event(choices=[{"index": 0, "delta": content, "finish_reason": finish}], **more)


def usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    return event(choices=[], usage={"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens})


DONE = b"data: [DONE]\n\n"


async def send_head(writer: Writer, status: int = 200, content_type: str = "text/event-stream") -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head.encode())


async def send_chunk(writer: Writer, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()


async def send_stream(writer: Writer, pieces: Iterable[bytes]) -> None:
    """A whole stream, each piece one HTTP chunk."""
    await send_head(writer)
    for piece in pieces:
        await send_chunk(writer, piece)
    await send_chunk(writer, b"")


async def send_error(writer: Writer, status: int, message: str) -> None:
    body = json.dumps({"error": {"message": message}}).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def tokens_of(text: str) -> int:
    """This server's tokenizer: a token for each three letters of a word, and ten around the prompt."""
    return 10 + sum(-(-len(word) // 3) for word in text.split())


async def respond(request: ReceivedRequest, writer: Writer) -> None:
    """A good server: as many tokens as requested, each in an event, then usage when requested."""
    count = request.body["max_tokens"]
    if "prompt" in request.body:
        pieces = [event(choices=[{"text": f"w{number} "}]) for number in range(count)]
        pieces.append(event(choices=[{"text": "", "finish_reason": "length"}]))
    else:
        pieces = [delta(), *(delta(f"w{number} ") for number in range(count)), delta("", "length")]
    if request.body.get("stream_options", {}).get("include_usage"):
        pieces.append(usage(tokens_of(request.text), count))
    await send_stream(writer, [*pieces, DONE])


@dataclass
class FakeOpenAI:
    """A server on an ephemeral port, as an async context. ``script`` responds; ``requests`` holds what came."""

    script: Script = respond
    model: str = "fake"
    requests: list[ReceivedRequest] = field(default_factory=list)
    connections: int = 0
    url: str = ""
    tls: ssl.SSLContext | None = None
    _serving: list[asyncio.Task[Any]] = field(default_factory=list)

    async def __aenter__(self) -> FakeOpenAI:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        serving = [task for task in self._serving if not task.done()]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)

    async def _serve(self, reader: Reader, writer: Writer) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.append(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._one(head.decode(), reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass  # asyncio's streams cannot bear a cancelled handler
        finally:
            writer.close()

    async def _one(self, head: str, reader: Reader, writer: Writer) -> None:
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path = first.split()[1]
        if path.endswith("/models"):
            found = json.dumps({"object": "list", "data": [{"id": self.model}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(found), found))
            return
        request = ReceivedRequest(path, headers, json.loads(body))
        self.requests.append(request)
        await self.script(request, writer)
        await writer.drain()
