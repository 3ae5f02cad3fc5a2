"""A mock of an engine's internal port: publishes state and prefix cache to many subscribers, and can fail."""

import asyncio
from collections import Counter
from typing import Self

import msgspec

from blade_protocol import headers
from blade_protocol.state import EngineEvent, EngineState, KVBatch, KVSnapshot
from router_support.engine import chunk, response

STATE = EngineState(
    model="m",
    revision="rev-7",
    ready=True,
    draining=False,
    running=0,
    waiting=0,
    kv_blocks_total=100,
    kv_blocks_free=100,
    prompt_tokens_total=0,
    cached_tokens_total=0,
    generation_tokens_total=0,
    preemptions_total=0,
    epoch="e",
    sequence=0,
)


class InternalPort:
    """Start with ``async with``; change the fields while it runs, and ``publish``."""

    def __init__(self, token: str = "", **state: object) -> None:
        self.token = token
        self.state = msgspec.structs.replace(STATE, **state)
        self.sequence = 0
        self.cached: set[bytes] = set()
        self.statuses: dict[str, int] = {}
        """Overrides of response statuses, e.g. ``{"/internal/events": 404}``."""
        self.queries: Counter[str] = Counter()
        self.tokens_seen: list[str] = []
        """The internal tokens of all requests."""
        self.subscribers: set[asyncio.StreamWriter] = set()
        self.url = ""
        self._port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.stop()

    async def start(self) -> None:
        """Listen; after ``stop`` on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.hang_up()

    def hang_up(self) -> None:
        """Break every stream of events."""
        for writer in self.subscribers:
            writer.transport.abort()
        self.subscribers.clear()

    def change(
        self,
        stored: set[bytes] = frozenset(),  # type: ignore[assignment]
        removed: set[bytes] = frozenset(),  # type: ignore[assignment]
        *,
        publish: bool = True,
    ) -> None:
        """Change the prefix cache; without ``publish`` the batch is lost."""
        self.cached = (self.cached | stored) - removed
        self.sequence += 1
        if publish:
            self.publish(KVBatch(sequence=self.sequence, stored=b"".join(stored), removed=b"".join(removed)))

    def restart(self) -> None:
        """Restart with an empty cache."""
        self.state = msgspec.structs.replace(self.state, epoch=self.state.epoch + "e", sequence=0)
        self.sequence, self.cached = 0, set()
        self.hang_up()

    def set(self, **state: object) -> None:
        """Change the state, and publish it."""
        self.state = msgspec.structs.replace(self.state, **state)
        self.publish()

    def publish(self, batch: KVBatch | None = None) -> None:
        """Send an event to all subscribers."""
        self.state = msgspec.structs.replace(self.state, sequence=self.state.sequence + 1)
        for writer in self.subscribers:
            self._event(writer, batch)

    def _event(self, writer: asyncio.StreamWriter, batch: KVBatch | None) -> None:
        event = EngineEvent(**msgspec.structs.asdict(self.state), kv=batch)
        writer.write(chunk(b"id: 1\ndata: " + msgspec.json.encode(event) + b"\n\n"))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = request.split(" ")[1]
        self.queries[path] += 1
        sent = [line.split(": ", 1) for line in lines if line]
        tokens = [value for name, value in sent if name == headers.INTERNAL_TOKEN] or [""]
        self.tokens_seen += tokens
        if self.token not in tokens or path in self.statuses:
            writer.write(response(self.statuses.get(path, 401), b"{}"))
            writer.close()
        elif path == "/internal/events":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            self._event(writer, KVBatch(sequence=self.sequence))
            self.subscribers.add(writer)
        else:
            snapshot = KVSnapshot(epoch=self.state.epoch, sequence=self.sequence, digests=b"".join(self.cached))
            writer.write(response(200, msgspec.json.encode(snapshot if path == "/internal/kv" else self.state)))
            writer.close()
