"""A mock engine: speaks the OpenAI API well enough for a router, and fails in every way a test sets.

It is a real server on a real port, so that what is tested are sockets closing and not exceptions being raised. It also
serves the benchmark, which is why it is a bare protocol and not a web framework.
"""

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast

import httptools

Mode = Literal["ok", "status", "busy", "draining", "reset", "reset-after-head", "hang", "break", "garbage", "hand-over"]
"""What happens to a ``/v1/`` request: a response; ``status``; a 503 with ``Retry-After``; a 503 that says draining; the
connection reset before a byte, after the headers, or in the middle of the body; no response; bytes that are not HTTP;
a stream that the engine ends early for another one to resume."""


@dataclass
class Received:
    """One request as it arrived."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


@dataclass
class MockEngine:
    """Start with ``async with``; change any field while it runs."""

    name: str = "engine"
    mode: Mode = "ok"
    status: int = 500
    health: int = 200
    comments: int = 0
    """Comments before the first event of a stream, each paced as an event."""
    tokens: int = 3
    """Events of a stream."""
    gate: asyncio.Semaphore | None = None
    """When set, each event of a stream, and each unary response, waits for one permit."""
    delay: float = 0.0
    """Seconds before each unary response and each event."""
    padding: str = ""
    """Added to the text of each response."""
    resumable: bool = False
    """Streams have token ids when requested (the events' numbers), and ``/internal/resume`` is served. Events do not
    contain the engine's name then."""
    digest: str = "same"
    """The digest of every prompt."""
    resumed: list[dict[str, Any]] = field(default_factory=list)
    """The bodies sent to ``/internal/resume``."""
    poison: bytes = b""
    """A request with this in its body crashes the engine: every connection breaks. It is back at once."""
    poison_after: int = 0
    """Events of a stream after which that happens."""
    crashes: int = 0
    error_body: bytes = b""
    """Body of a response of the mode ``status``, in place of the usual error."""
    usage: dict[str, int] | None = None
    """The usage in the last event of a stream."""
    records: bool = True
    """Keep what was received; off for benchmarks."""
    pages: dict[str, str] = field(default_factory=dict)
    """Overrides of responses to ``GET``, by path."""
    received: list[Received] = field(default_factory=list)
    probes: int = 0
    connections: int = 0
    aborted: int = 0
    """Requests whose connection the other side closed before the response was complete."""
    active: int = 0
    port: int = 0
    open: set["_Protocol"] = field(default_factory=set)
    _server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Listen; after ``kill`` on the same port as before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Protocol(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Fail as ``kill -9`` does for clients: the port closes and every connection breaks."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop_connections()
        await asyncio.sleep(0)

    def drop_connections(self) -> None:
        for protocol in list(self.open):
            protocol.lost_by_us = True
            protocol.transport.abort()

    def crash(self) -> None:
        """Break every connection, and be back at once."""
        self.crashes += 1
        self.drop_connections()

    def compute(self, request: Received) -> tuple[dict[str, Any], bytes]:
        """The usage of a whole response, and header lines for it."""
        return {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}, b""

    def event(self, index: int) -> bytes:
        """One event of a stream, as bytes."""
        name = "" if self.resumable else self.name
        delta = {"content": f"{name}-{index}{self.padding}"}
        choices = [{"index": 0, "delta": delta, "finish_reason": None}]
        data: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "mock"}
        data["choices"] = choices
        if self.usage is not None and index == self.tokens - 1:
            data["usage"] = self.usage
        return b"data: " + json.dumps(data).encode() + b"\n\n"

    def response_event(self, index: int) -> bytes:
        """One event of a streamed response: named, numbered, and the last one says that it is over."""
        name = "response.completed" if index == self.tokens - 1 else "response.output_text.delta"
        data = {
            "type": name,
            "sequence_number": index,
            "delta": f"{'' if self.resumable else self.name}-{index}{self.padding}",
        }
        return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


class _Protocol(asyncio.Protocol):
    _ids = itertools.count()

    def __init__(self, engine: MockEngine) -> None:
        self.engine = engine
        self.lost_by_us = False
        self.parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport
        self.task: asyncio.Task[None] | None = None
        self.target = b""
        self.headers: list[tuple[str, str]] = []
        self.body: list[bytes] = []
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.engine.connections += 1
        self.engine.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.open.discard(self)
        self.writable.set()
        if self.task is not None and not self.task.done():
            if not self.lost_by_us:
                self.engine.aborted += 1
            self.task.cancel()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.engine.records:
            self.headers.append((name.decode().lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self.body.append(body)

    def on_message_complete(self) -> None:
        target, self.target = self.target.decode(), b""
        request = Received(self.parser.get_method().decode(), target, self.headers, b"".join(self.body))
        self.headers, self.body = [], []
        if target == "/health":
            self.engine.probes += 1
            extra = b"x-blade-draining: 1\r\n" if self.engine.mode == "draining" else b""
            status = 503 if self.engine.mode == "draining" else self.engine.health
            self.transport.write(response(status, b'{"status":"mock"}', extra))
            return
        resumes = self.engine.resumable and target == "/internal/resume"
        if target.startswith("/internal/") and not resumes:  # another engine's port plus a thousand may be this one
            self.transport.write(response(404, b"{}"))
            return
        if request.method == "GET" and target in self.engine.pages:
            self.transport.write(response(200, self.engine.pages[target].encode()))
            return
        if self.engine.records:
            self.engine.received.append(request)
        self.task = asyncio.get_running_loop().create_task(self.respond(request))

    async def respond(self, request: Received) -> None:
        self.engine.active += 1
        try:
            await self._respond(request)
        finally:
            self.engine.active -= 1

    async def _respond(self, request: Received) -> None:
        engine, mode, write = self.engine, self.engine.mode, self.transport.write
        poisoned = bool(engine.poison) and engine.poison in request.body
        if poisoned and not engine.poison_after:
            await self._pace()
            return engine.crash()
        if mode == "hang":
            await asyncio.Event().wait()
        if mode == "reset":
            self.lost_by_us = True
            return self.transport.abort()
        if mode == "garbage":
            return write(b"SSH-2.0-nonsense\r\n\r\n")
        if mode in ("status", "busy", "draining"):
            status = engine.status if mode == "status" else 503
            extra = {"busy": b"retry-after: 30\r\n", "draining": b"x-blade-draining: 1\r\n"}.get(mode, b"")
            error = {"message": f"{engine.name} says {status}", "type": "server_error", "param": None, "code": None}
            return write(response(status, engine.error_body or json.dumps({"error": error}).encode(), extra))
        path = request.target.partition("?")[0]
        if path == "/internal/resume" and engine.resumable:
            return await self._resume(json.loads(request.body), poisoned)
        if request.method == "GET":
            return write(response(200, json.dumps({"object": "list", "data": [{"id": engine.name}]}).encode()))
        streams = request.method == "POST" and path.startswith("/v1/") and path != "/v1/embeddings"
        if streams and b'"stream":true' in request.body.replace(b" ", b""):
            ids = engine.resumable and request.header("x-blade-stream-ids") == ["1"]
            return await self._stream(mode, named=path == "/v1/responses", ids=ids, poisoned=poisoned)
        await self._pace()
        usage, extra = engine.compute(request) if streams else ({}, b"")
        body = self._unary(usage) if streams else json.dumps({"path": path}).encode()
        if mode == "break":
            write(response(200, body)[:-10])
            return await self._lose()
        if mode == "reset-after-head":
            write(response(200, body).split(b"\r\n\r\n")[0] + b"\r\n\r\n")
            return await self._lose()
        return write(response(200, body, extra))

    def _unary(self, usage: dict[str, Any]) -> bytes:
        message = {"role": "assistant", "content": f"from {self.engine.name}{self.engine.padding}"}
        return json.dumps(
            {
                "id": f"chatcmpl-{next(self._ids)}",
                "object": "chat.completion",
                "created": 1,
                "model": "mock",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": usage,
            }
        ).encode()

    async def _resume(self, query: dict[str, Any], poisoned: bool) -> None:
        """Resume after the events that were sent."""
        self.engine.resumed.append(query)
        if query["prompt_digest"] != self.engine.digest:
            self.transport.write(response(409, b'{"error": {"message": "another prompt"}}'))
            return
        sent = [token for group in query["token_ids"] for token in group]
        assert sent == list(range(len(sent))), "each event once, in order"
        await self._stream(
            self.engine.mode, named=query["path"] == "/v1/responses", ids=True, begin=len(sent), poisoned=poisoned
        )

    async def _stream(
        self, mode: Mode, *, named: bool, ids: bool = False, begin: int = 0, poisoned: bool = False
    ) -> None:
        engine = self.engine
        make, last = (engine.response_event, b"") if named else (engine.event, b"data: [DONE]\n\n")
        extra = b"x-request-id: r1\r\nx-blade-created: 5\r\nx-blade-seed: 6\r\nx-blade-prompt-digest: %b\r\n"
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n%btransfer-encoding: chunked\r\n\r\n"
            % (extra % engine.digest.encode() if ids else b"")
        )
        if mode == "reset-after-head":
            await self._lose()
            return
        for _ in range(engine.comments):
            await self._pace()
            self.transport.write(chunk(b": working\n\n"))
        for index in range(begin, engine.tokens):
            await self._pace()
            if poisoned and index >= engine.poison_after:
                await asyncio.sleep(0.01)  # what was written has gone out
                engine.crash()
                return
            if mode == "hand-over" and index == engine.tokens - 1:
                last = b": lost\n\n"
                break
            if mode == "break" and index == engine.tokens - 1:
                event = make(index)
                self.transport.write(chunk(event[: len(event) // 2]))
                await self._lose()
                return
            if ids and index == engine.tokens - 1:
                last = make(index) + last + b": \n\n"
                break
            self.transport.write(chunk(make(index) + (b": %d\n\n" % index if ids else b"")))
            await self.writable.wait()
        self.transport.write((chunk(last) if last else b"") + b"0\r\n\r\n")

    async def _pace(self) -> None:
        if self.engine.gate is not None:
            await self.engine.gate.acquire()
        if self.engine.delay:
            await asyncio.sleep(self.engine.delay)

    async def _lose(self) -> None:
        """Break the connection, after what was written has gone out."""
        await asyncio.sleep(0.01)
        while self.transport.get_write_buffer_size():  # noqa: ASYNC110 - transports have no event for an empty buffer
            await asyncio.sleep(0.01)
        self.lost_by_us = True
        self.transport.abort()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def response(status: int, body: bytes, extra: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %d Mock\r\ncontent-type: application/json\r\nx-blade-secret: engine\r\nx-engine: kept\r\n"
    return head % status + extra + b"content-length: %d\r\n\r\n" % len(body) + body
