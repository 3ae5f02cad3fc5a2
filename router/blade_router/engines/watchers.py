"""One watcher per endpoint, from the moment it is configured until it is removed.

It retries for ever with exponential backoff and jitter, so watchers do not reconnect in step.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final

from blade_router.config.internal_token import token_file
from blade_router.config.token_header import TokenHeader, shared
from blade_router.endpoints.endpoint import Endpoint
from blade_router.engines.blade import BladeEngine
from blade_router.engines.external import ExternalEngine
from blade_router.engines.kv_events import KvEventSubscriber
from blade_router.engines.kv_index import KvIndex
from blade_router.http.upstream.errors import ConnectFailed, UpstreamError

logger = logging.getLogger("blade_router.engines")

POLL_SECONDS: Final = 5.0
"""Between two polls of an engine that pushes nothing."""
BUSY_POLL_SECONDS: Final = 1.0
"""The same while it has requests of this router: how many it runs and how many wait decides on what it is sent."""
INITIAL_BACKOFF: Final = 0.25
MAX_BACKOFF: Final = 5.0
"""Backoff in seconds after the first failure and at most; plus or minus half as jitter."""
_EXPECTED: Final = (UpstreamError, OSError, ValueError)  # msgspec's errors are ValueErrors


class EngineWatchers:
    """Keeps endpoints' load reports, and the exact index where there is one, up to date with their engines.

    Args:
        cleared: called when an engine's prefix cache was cleared or its content is unknown.
        token: the internal token; None: that of the file the environment names, if any.
        poll_seconds: between two polls of an engine that pushes nothing; None: ``POLL_SECONDS``.
    """

    def __init__(
        self,
        cleared: Callable[[Endpoint], None] = lambda endpoint: None,
        *,
        token: TokenHeader | None = None,
        poll_seconds: float | None = None,
    ) -> None:
        self._token = token or shared(token_file())
        self._cleared = cleared
        self._poll_seconds = POLL_SECONDS if poll_seconds is None else poll_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake_events: dict[Endpoint, asyncio.Event] = {}
        self._index: KvIndex | None = None

    @property
    def index(self) -> KvIndex | None:
        """The exact index, set while the policy is kv-aware. A new one is filled at each engine's next event.

        One that is replaced is emptied: from then on nothing would keep it up to date.
        """
        return self._index

    @index.setter
    def index(self, index: KvIndex | None) -> None:
        if self._index is not None and self._index is not index:
            self._index.forget_all()
        self._index = index

    def watch(self, endpoints: Iterable[Endpoint]) -> None:
        """Start watching these endpoints."""
        for endpoint in endpoints:
            task = asyncio.create_task(self._watch(endpoint), name=f"watch {endpoint.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def watched(self) -> int:
        """The number of endpoints that are watched now."""
        return len(self._tasks)

    async def wake(self, endpoint: Endpoint) -> None:
        """Retry an endpoint at once that has come up."""
        if (wake := self._wake_events.get(endpoint)) is not None:
            wake.set()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, endpoint: Endpoint) -> None:
        try:
            if endpoint.config.engine == "blade":
                await self._watch_blade(endpoint)
            else:
                await self._watch_external(endpoint)
        finally:
            self._wake_events.pop(endpoint, None)
            if self.index is not None and endpoint.removed:
                self.index.forget(endpoint)

    async def _watch_blade(self, endpoint: Endpoint) -> None:
        engine = BladeEngine(endpoint, self._token, lambda: self._index, self._cleared)
        failures = 0
        last_error = ""

        def on_event() -> None:
            nonlocal failures, last_error
            failures, last_error = -1, ""

        while not endpoint.removed:
            seconds = 0.0
            try:
                await engine.watch(on_event)
            except _EXPECTED as error:
                why = str(error)
                logger.debug("events of endpoint %s: %s", endpoint.name, why)
                if failures >= 0 and not isinstance(error, ConnectFailed):
                    try:
                        await engine.poll()
                        why, last_error = "", ""
                        seconds = self._poll_seconds
                    except _EXPECTED as poll_error:
                        why = str(poll_error)
                if failures >= 0 and why:
                    last_error = self._log_once(endpoint, why, last_error)
            failures += 1
            await self._pause(endpoint, seconds or min(MAX_BACKOFF, INITIAL_BACKOFF * 2.0 ** min(failures, 8)))

    async def _watch_external(self, endpoint: Endpoint) -> None:
        engine = ExternalEngine(endpoint)
        last_error = ""
        subscriber: asyncio.Task[None] | None = None
        if endpoint.config.kv_events:
            subscriber = asyncio.create_task(KvEventSubscriber(endpoint, self._cleared).run())
        try:
            while not endpoint.removed:
                try:
                    await engine.poll()
                    last_error = ""
                except _EXPECTED as error:
                    last_error = self._log_once(endpoint, str(error), last_error)
                busy = min(self._poll_seconds, BUSY_POLL_SECONDS)
                await self._pause(endpoint, busy if endpoint.in_flight else self._poll_seconds)
        finally:
            if subscriber is not None:
                subscriber.cancel()
                await asyncio.gather(subscriber, return_exceptions=True)

    def _log_once(self, endpoint: Endpoint, why: str, before: str) -> str:
        """Log an error once; that an engine is down is the health check's to log."""
        if why != before:
            loud = endpoint.health.up and (endpoint.config.internal_url or endpoint.config.engine != "blade")
            level = logging.WARNING if loud else logging.DEBUG
            logger.log(level, "the state of endpoint %s is unknown: %s", endpoint.name, why)
        return why

    async def _pause(self, endpoint: Endpoint, seconds: float) -> None:
        """Wait with jitter; an endpoint that is down now is woken when it comes up."""
        wake = asyncio.Event()
        if not endpoint.health.up:
            self._wake_events[endpoint] = wake
        try:
            async with asyncio.timeout(seconds * random.uniform(0.5, 1.5)):
                await wake.wait()
        except TimeoutError:
            pass
        self._wake_events.pop(endpoint, None)
