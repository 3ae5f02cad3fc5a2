"""One follower per endpoint, from the moment it is configured until it is removed.

It tries for ever, but not often: after a failure it waits, longer each time and never as long as the next follower.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from blade_router import internal_token
from blade_router.endpoints import Endpoint
from blade_router.engines.blade import BladeEngine
from blade_router.engines.kv_events import KvSubscriber
from blade_router.engines.kv_index import KvIndex
from blade_router.engines.peers import PeerEngine
from blade_router.upstream_errors import ConnectFailed, UpstreamError

logger = logging.getLogger("blade_router.engines")

POLL_SECONDS: Final = 5.0
"""Between two questions to an engine that pushes nothing."""
FIRST_PAUSE: Final = 0.25
MOST_PAUSE: Final = 5.0
"""Seconds after the first failure and after many; give or take half."""
_EXPECTED: Final = (UpstreamError, OSError, ValueError)  # msgspec's errors are ValueErrors


class Followers:
    """Keeps endpoints' fields, and the exact index where there is one, as their engines tell.

    Args:
        cleared: called when an engine's prompt cache began anew or cannot be known any more.
        token_file: of the internal token; None: the environment says where it is, if there is one.
        poll_seconds: between two questions to an engine that pushes nothing; None: ``POLL_SECONDS``.
    """

    def __init__(
        self,
        cleared: Callable[[Endpoint], None] = lambda endpoint: None,
        *,
        token_file: Path | None = None,
        poll_seconds: float | None = None,
    ) -> None:
        self._token_file = token_file or internal_token.token_file()
        self._cleared = cleared
        self._poll_seconds = POLL_SECONDS if poll_seconds is None else poll_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._nudges: dict[Endpoint, asyncio.Event] = {}
        self._index: KvIndex | None = None

    @property
    def index(self) -> KvIndex | None:
        """Set while the policy is kv-aware. A new one is filled as soon as each engine tells anything.

        One that is taken away forgets what it knows: from then on nobody would tell it what has changed.
        """
        return self._index

    @index.setter
    def index(self, index: KvIndex | None) -> None:
        if self._index is not None and self._index is not index:
            self._index.forget_all()
        self._index = index

    def watch(self, endpoints: Iterable[Endpoint]) -> None:
        """Start following these."""
        for endpoint in endpoints:
            task = asyncio.create_task(self._follow(endpoint), name=f"follow {endpoint.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def followed(self) -> int:
        """How many endpoints are followed now."""
        return len(self._tasks)

    async def nudge(self, endpoint: Endpoint) -> None:
        """It is up: one that could not be reached before may be tried at once."""
        if (nudge := self._nudges.get(endpoint)) is not None:
            nudge.set()

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, endpoint: Endpoint) -> None:
        try:
            if endpoint.engine == "blade":
                await self._follow_blade(endpoint)
            else:
                await self._follow_peer(endpoint)
        finally:
            self._nudges.pop(endpoint, None)
            if self.index is not None and endpoint.removed:
                self.index.forget(endpoint)

    async def _follow_blade(self, endpoint: Endpoint) -> None:
        engine = BladeEngine(endpoint, self._token_file, lambda: self._index, self._cleared)
        failures = 0
        complaint = ""

        def heard() -> None:
            nonlocal failures, complaint
            failures, complaint = -1, ""

        while not endpoint.removed:
            seconds = 0.0
            try:
                await engine.follow(heard)
            except _EXPECTED as error:
                why = str(error)
                logger.debug("events of endpoint %s: %s", endpoint.name, why)
                if failures >= 0 and not isinstance(error, ConnectFailed):
                    try:
                        await engine.ask()
                        why, complaint = "", ""
                        seconds = self._poll_seconds
                    except _EXPECTED as unwilling:
                        why = str(unwilling)
                if failures >= 0 and why:
                    complaint = self._complain(endpoint, why, complaint)
            failures += 1
            await self._pause(endpoint, seconds or min(MOST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures, 8)))

    async def _follow_peer(self, endpoint: Endpoint) -> None:
        engine = PeerEngine(endpoint)
        complaint = ""
        subscriber: asyncio.Task[None] | None = None
        if endpoint.kv_events:
            subscriber = asyncio.create_task(KvSubscriber(endpoint, self._cleared).follow())
        try:
            while not endpoint.removed:
                try:
                    await engine.ask()
                    complaint = ""
                except _EXPECTED as error:
                    complaint = self._complain(endpoint, str(error), complaint)
                await self._pause(endpoint, self._poll_seconds)
        finally:
            if subscriber is not None:
                subscriber.cancel()
                await asyncio.gather(subscriber, return_exceptions=True)

    def _complain(self, endpoint: Endpoint, why: str, before: str) -> str:
        """Say once what is wrong; that an engine is down is the health check's to say."""
        if why != before:
            loud = endpoint.up and (endpoint.internal_url or endpoint.engine != "blade")
            level = logging.WARNING if loud else logging.DEBUG
            logger.log(level, "the state of endpoint %s is unknown: %s", endpoint.name, why)
        return why

    async def _pause(self, endpoint: Endpoint, seconds: float) -> None:
        """Wait, give or take half; until it comes up if it is down now."""
        nudge = asyncio.Event()
        if not endpoint.up:
            self._nudges[endpoint] = nudge
        try:
            async with asyncio.timeout(seconds * random.uniform(0.5, 1.5)):
                await nudge.wait()
        except TimeoutError:
            pass
        self._nudges.pop(endpoint, None)
