"""A process that opens many streams at once and counts their events: raw sockets, no HTTP library on the way."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Sequence
from ctypes import Array, c_longlong
from multiprocessing.process import BaseProcess
from typing import Any, Final

import uvloop

BEGUN, EVENTS, FINISHED, WRONG = range(4)
"""What a load counts: streams with their first event, events, streams that are through, streams not as they should."""
_MARK: Final = b"data: "


class _Stream(asyncio.Protocol):
    """One request on one connection."""

    def __init__(self, request: bytes, expected: str, field: str, counts: Array[c_longlong]) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._request = request
        self._expected = expected
        self._field = field
        self._counts = counts
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._parts:
            self._counts[BEGUN] += 1
        self._parts.append(data)
        self._counts[EVENTS] += data.count(_MARK)
        if data.endswith(b"0\r\n\r\n"):
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._counts[FINISHED] += 1
        self._counts[WRONG] += _text(b"".join(self._parts), self._field) != self._expected
        self.ended.set_result(None)


def _text(response: bytes, field: str) -> str:
    """The output's text; what is missing at its end shows."""
    head, _, chunks = response.partition(b"\r\n\r\n")
    body = bytearray()
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        body += rest[: int(size, 16)]
        chunks = rest[int(size, 16) + 2 :]
    *events, usage, done, end = bytes(body).decode().split("\n\n")
    if not head.startswith(b"HTTP/1.1 200") or (done, end) != ("data: [DONE]", ""):
        return f"{head!r} … {done!r}"
    texts = []
    for event in events:
        (choice,) = json.loads(event[len(_MARK) :])["choices"]
        texts.append(choice["text"] if field == "text" else choice["delta"].get("content", ""))
    return "".join(texts) + f"|{json.loads(usage[len(_MARK) :])['usage']['completion_tokens']}"


def _run(port: int, request: bytes, expected: str, field: str, streams: int, counts: Array[c_longlong]) -> None:
    async def load() -> None:
        loop = asyncio.get_running_loop()
        connections = [
            loop.create_connection(lambda: _Stream(request, expected, field, counts), "127.0.0.1", port)
            for _ in range(streams)
        ]
        protocols = [protocol for _, protocol in await asyncio.gather(*connections)]
        await asyncio.gather(*(protocol.ended for protocol in protocols))

    uvloop.run(load())


class Load:
    """``streams`` equal requests, spread over ``processes`` processes."""

    def __init__(self, port: int, path: str, text: str, tokens: int, streams: int, processes: int = 1) -> None:
        field = "text" if path == "/v1/completions" else "content"
        request = _request(path, tokens)
        context = multiprocessing.get_context("spawn")
        self._counts: list[Any] = [context.RawArray(c_longlong, 4) for _ in range(processes)]
        self._processes: Sequence[BaseProcess] = [
            context.Process(
                target=_run,
                args=(port, request, f"{text}|{tokens}", field, streams // processes, counts),
                daemon=True,
            )
            for counts in self._counts
        ]
        for process in self._processes:
            process.start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def running(self) -> bool:
        return any(process.is_alive() for process in self._processes)

    def count(self, which: int) -> int:
        return sum(counts[which] for counts in self._counts)

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


def _request(path: str, tokens: int) -> bytes:
    request_body: dict[str, Any] = {"max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}
    if path == "/v1/completions":
        request_body["prompt"] = "Once upon a time"
    else:
        request_body["messages"] = [{"role": "user", "content": "Once upon a time"}]
    body = json.dumps(request_body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
