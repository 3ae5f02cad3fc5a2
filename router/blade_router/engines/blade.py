"""Watching a BladeLLM engine: load reports and KV events, pushed over one connection to its internal port.

An engine without events (or one that refuses the token) is polled for its state instead.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from blade_protocol import paths
from blade_protocol.state import EngineEvent, EngineState, KVBatch, KVSnapshot
from blade_router.config.token_header import TokenHeader
from blade_router.endpoints.endpoint import Endpoint
from blade_router.engines.kv_index import KvIndex
from blade_router.http.upstream.connection import Connection
from blade_router.http.upstream.errors import BadResponse, UnexpectedStatus, UpstreamError
from blade_router.http.upstream.get import get, open_get

SILENCE_SECONDS: Final = 15.0
"""Idle timeout of the event stream; an engine sends a keep-alive comment every 5 s."""
MAX_EVENT_BYTES: Final = 8 << 20
_SNAPSHOT_SECONDS: Final = 30.0

_decode_state = msgspec.json.Decoder(EngineState).decode
_decode_event = msgspec.json.Decoder(EngineEvent).decode
_decode_snapshot = msgspec.json.Decoder(KVSnapshot).decode


class BladeEngine:
    """One endpoint that is a BladeLLM engine.

    Args:
        token: identifies the router to the engine.
        index: returns the present exact index, if any.
        cleared: called when the engine's prefix cache was cleared.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        token: TokenHeader,
        index: Callable[[], KvIndex | None],
        cleared: Callable[[Endpoint], None],
    ) -> None:
        self._endpoint = endpoint
        self._token = token
        self._index = index
        self._cleared = cleared
        self._epoch = ""
        self._publishes_kv = True

    async def watch(self, on_event: Callable[[], None]) -> None:
        """Apply events until the connection ends, which raises; ``on_event`` is called after each.

        Raises:
            UpstreamError, OSError, ValueError: no events (any more), or malformed ones.
        """
        self._publishes_kv = True
        try:
            async with open_get(self._url(paths.INTERNAL_EVENTS), self._header()) as connection:
                async for data in _events(connection):
                    if not data:
                        self._endpoint.report.update()
                        await self._apply_kv(None)  # there may be an index by now
                        continue
                    event = _decode_event(data)
                    # The report keeps the state, and no batch, which may be large.
                    self._apply_state(event if event.kv is None else msgspec.structs.replace(event, kv=None))
                    await self._apply_kv(event.kv)
                    on_event()
                    if self._endpoint.removed:
                        return
        finally:
            if (index := self._index()) is not None:
                index.set_live(self._endpoint, False)

    async def poll(self) -> None:
        """Get the state once.

        Raises:
            UpstreamError, OSError, ValueError: no response, or a malformed one.
        """
        self._apply_state(_decode_state(await get(self._url(paths.INTERNAL_STATE), self._header())))

    def _apply_state(self, state: EngineState) -> None:
        endpoint = self._endpoint
        adapters = frozenset(state.adapters)
        endpoint.report.update(
            running=state.running,
            waiting=state.waiting,
            kv_usage=1.0 - state.kv_blocks_free / state.kv_blocks_total if state.kv_blocks_total else 0.0,
            capacity=state.max_running,
            cache_tokens=state.memory.kv_tokens if state.memory is not None else 0,
            models=adapters | {state.model},
            adapters=adapters,
            adapter_seconds=_cold(state),
            revision=state.revision,
            state=state,
        )
        if state.draining:
            endpoint.health.mark_draining()
        elif endpoint.health.draining:
            endpoint.health.check_now()  # the health check readmits it
        if state.epoch != self._epoch:
            if self._epoch:
                self._cleared(endpoint)
            self._epoch = state.epoch

    async def _apply_kv(self, batch: KVBatch | None) -> None:
        """Bring the index up to ``batch``, with a snapshot after a gap. None: nothing has changed."""
        index, endpoint = self._index(), self._endpoint
        if index is None or not self._publishes_kv:
            return
        known = index.position(endpoint)
        if known is None or known[0] != self._epoch or (batch and (batch.lost or batch.sequence > known[1] + 1)):
            url = self._url(paths.INTERNAL_KV)
            try:
                snapshot = _decode_snapshot(await get(url, self._header(), _SNAPSHOT_SECONDS))
            except UnexpectedStatus as error:
                if error.status != 404:
                    raise
                self._publishes_kv = False  # an older version, which reports its load all the same
                return
            if snapshot.epoch != self._epoch:
                raise BadResponse("the engine restarted meanwhile")
            await index.replace(endpoint, snapshot)
        elif batch is not None and batch.sequence == known[1] + 1:
            index.apply(endpoint, batch)
        index.set_live(endpoint, True)

    def _url(self, path: str) -> str:
        return self._endpoint.internal_origin + path

    def _header(self) -> str:
        return self._token.lines().decode("latin-1")


async def _events(connection: Connection) -> AsyncIterator[bytes]:
    """The data of each server-sent event, and an empty one for a keep-alive comment.

    Raises:
        UpstreamError: the stream ended, broke, timed out, or has an event that is too long.
    """
    rest = b""
    while True:
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                chunk = await connection.read()
        except TimeoutError:
            raise BadResponse(f"no event for {SILENCE_SECONDS:g} s") from None
        if not chunk:
            raise UpstreamError("the engine ended its event stream")
        *whole, rest = (rest + chunk).split(b"\n\n")
        if len(rest) > MAX_EVENT_BYTES:
            raise BadResponse(f"an event of more than {MAX_EVENT_BYTES} bytes")
        for event in whole:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    yield line[5:]
                elif line.startswith(b":"):
                    yield b""


def _cold(state: EngineState) -> dict[str, float]:
    """The adapters whose weights are on disk alone, and what reading one takes."""
    counts = state.adapter_counts
    if counts is None or not counts.host_load_seconds or "disk" not in state.adapter_tiers:
        return {}
    tiers = zip(state.adapters, state.adapter_tiers, strict=False)
    return {name: counts.host_load_seconds for name, tier in tiers if tier == "disk"}
