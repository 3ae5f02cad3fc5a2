"""Following one of our engines: its state and its prompt cache, pushed on one connection to its internal port.

An engine that has no events (or a token that does not fit them) is asked for its state now and then instead.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import msgspec

from blade_protocol import headers, paths
from blade_protocol.state import EngineEvent, EngineState, KVBatch, KVSnapshot
from blade_router.asking import Unwilling, get, opened
from blade_router.endpoints import Endpoint
from blade_router.engines.kv_index import KvIndex
from blade_router.upstream import Connection
from blade_router.upstream_errors import BadAnswer, UpstreamError

SILENCE_SECONDS: Final = 15.0
"""Without a byte of events, after which a connection is given up; an engine says every 5 s that it is there."""
MOST_EVENT_BYTES: Final = 8 << 20
_SNAPSHOT_SECONDS: Final = 30.0

_decode_state = msgspec.json.Decoder(EngineState).decode
_decode_event = msgspec.json.Decoder(EngineEvent).decode
_decode_snapshot = msgspec.json.Decoder(KVSnapshot).decode


class BladeEngine:
    """One endpoint that is ours.

    Args:
        token_file: holds the internal token, and may change; it is read for each connection. None: none is sent.
        index: the exact index there is now, if any.
        cleared: called when its prompt cache began anew.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        token_file: Path | None,
        index: Callable[[], KvIndex | None],
        cleared: Callable[[Endpoint], None],
    ) -> None:
        self._endpoint = endpoint
        self._token_file = token_file
        self._index = index
        self._cleared = cleared
        self._epoch = ""
        self._tells_kv = True

    async def follow(self, heard: Callable[[], None]) -> None:
        """Take in events until the connection ends, which raises; ``heard`` is called after each.

        Raises:
            UpstreamError, OSError, ValueError: no events (any more), or they make no sense.
        """
        self._tells_kv = True
        try:
            async with opened(self._url(paths.INTERNAL_EVENTS), self._header()) as connection:
                async for data in _events(connection):
                    if not data:
                        self._endpoint.told_at = time.monotonic()
                        await self._take_kv(None)  # there may be an index by now
                        continue
                    event = _decode_event(data)
                    self._take(event)
                    await self._take_kv(event.kv)
                    heard()
                    if self._endpoint.removed:
                        return
        finally:
            if (index := self._index()) is not None:
                index.set_live(self._endpoint, False)

    async def ask(self) -> None:
        """Ask for the state once.

        Raises:
            UpstreamError, OSError, ValueError: no answer, or none that makes sense.
        """
        self._take(_decode_state(await get(self._url(paths.INTERNAL_STATE), self._header())))

    def _take(self, state: EngineState) -> None:
        endpoint = self._endpoint
        endpoint.running = state.running
        endpoint.waiting = state.waiting
        endpoint.kv_usage = 1.0 - state.kv_blocks_free / state.kv_blocks_total if state.kv_blocks_total else 0.0
        endpoint.capacity = state.max_running
        endpoint.cache_tokens = state.memory.kv_tokens if state.memory is not None else 0
        endpoint.adapters = frozenset(state.adapters)
        endpoint.models = endpoint.adapters | {state.model}
        endpoint.told_at = time.monotonic()
        endpoint.tell_revision(state.revision)
        if state.draining:
            endpoint.mark_draining()
        elif endpoint.engine_draining:
            endpoint.suspect()  # the health check takes it back in
        if state.epoch != self._epoch:
            if self._epoch:
                self._cleared(endpoint)
            self._epoch = state.epoch

    async def _take_kv(self, batch: KVBatch | None) -> None:
        """Bring the index up to ``batch``, with a snapshot where something is missing. None: nothing has changed."""
        index, endpoint = self._index(), self._endpoint
        if index is None or not self._tells_kv:
            return
        known = index.position(endpoint)
        if known is None or known[0] != self._epoch or (batch and (batch.lost or batch.sequence > known[1] + 1)):
            url = self._url(paths.INTERNAL_KV)
            try:
                snapshot = _decode_snapshot(await get(url, self._header(), _SNAPSHOT_SECONDS))
            except Unwilling as error:
                if error.status != 404:
                    raise
                self._tells_kv = False  # an older version, which tells of its load all the same
                return
            if snapshot.epoch != self._epoch:
                raise BadAnswer("the engine started anew meanwhile")
            await index.replace(endpoint, snapshot)
        elif batch is not None and batch.sequence == known[1] + 1:
            index.apply(endpoint, batch)
        index.set_live(endpoint, True)

    def _url(self, path: str) -> str:
        return self._endpoint.internal_origin + path

    def _header(self) -> str:
        if self._token_file is None:
            return ""
        return f"{headers.INTERNAL_TOKEN}: {self._token_file.read_text().strip()}\r\n"


async def _events(connection: Connection) -> AsyncIterator[bytes]:
    """The data of each server-sent event, and an empty one for a comment, which says that nothing changed.

    Raises:
        UpstreamError: the stream ended, broke, fell silent, or has an event that is too long.
    """
    rest = b""
    while True:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                chunk = await connection.read()
        except TimeoutError:
            raise BadAnswer(f"no event for {SILENCE_SECONDS:g} s") from None
        if not chunk:
            raise UpstreamError("the engine ended its events")
        *whole, rest = (rest + chunk).split(b"\n\n")
        if len(rest) > MOST_EVENT_BYTES:
            raise BadAnswer(f"an event of more than {MOST_EVENT_BYTES} bytes")
        for event in whole:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    yield line[5:]
                elif line.startswith(b":"):
                    yield b""
