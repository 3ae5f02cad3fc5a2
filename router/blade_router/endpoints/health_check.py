"""The active health check: queries every endpoint's ``GET /health``, seldom while it is well, often while it is not.

A check opens its own connection, so it also detects an engine that has stopped accepting. Checks are spread by jitter;
a failed request makes the next one come at once.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable

from blade_protocol import paths
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.retry_budget import DRAINING
from blade_router.http.upstream.errors import ConnectFailed, OutOfResources, UpstreamError
from blade_router.http.upstream.get import send_get

FAILING_INTERVAL = 0.25
"""Seconds between checks of an endpoint that is down, or drains."""
UNHEALTHY_AFTER = 2
"""Checks in a row that must time out or break before an endpoint that was up counts as down."""


class HealthChecker:
    """Checks every endpoint in a small task of its own, until the endpoint is removed.

    Args:
        interval: seconds between checks of an endpoint that is well, give or take 20 %.
        timeout: seconds an endpoint has to respond.
        on_up: called after each check, while the endpoint is up.
    """

    def __init__(
        self,
        interval: float = 2.0,
        timeout: float = 2.0,
        on_up: Callable[[Endpoint], Awaitable[None]] | None = None,
    ) -> None:
        self._interval = interval
        self._timeout = timeout
        self._on_up = on_up
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, endpoints: Iterable[Endpoint]) -> None:
        """Start checking these endpoints."""
        for endpoint in endpoints:
            task = asyncio.create_task(self._watch(endpoint), name=f"health {endpoint.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, endpoint: Endpoint) -> None:
        wake = asyncio.Event()
        health = endpoint.health
        health.check_now = wake.set
        misses = 0
        while not endpoint.removed:
            wake.clear()
            misses = await self._check(endpoint, misses)
            endpoint.pool.prune()
            if health.up and self._on_up is not None:
                await self._on_up(endpoint)
            well = health.up and not health.draining and not misses
            interval = self._interval if well else FAILING_INTERVAL
            # Waking it shortens a long wait; it cannot make checks more frequent than those of a failing endpoint.
            await asyncio.sleep(min(FAILING_INTERVAL, interval))
            try:
                async with asyncio.timeout(max(0.0, interval * random.uniform(0.8, 1.2) - FAILING_INTERVAL)):
                    await wake.wait()
            except TimeoutError:
                pass

    async def _check(self, endpoint: Endpoint, misses: int) -> int:
        """Check once and record the result; returns how many checks in a row got no response."""
        try:
            async with asyncio.timeout(self._timeout):
                status, draining = await query_health(endpoint)
        except OutOfResources:
            return misses  # nothing was learned about the endpoint
        except (UpstreamError, TimeoutError) as error:
            absent = isinstance(error, ConnectFailed) and error.absent
            if absent or misses + 1 >= UNHEALTHY_AFTER or endpoint.health.up is None:
                endpoint.health.mark_down(str(error) or f"{paths.HEALTH} took longer than {self._timeout:g} s")
            return misses + 1
        if status == 200:
            endpoint.health.mark_up()
        elif draining:
            endpoint.health.mark_draining()
        else:
            endpoint.health.mark_down(f"{paths.HEALTH} answered {status}")
        return 0


async def query_health(endpoint: Endpoint) -> tuple[int, bool]:
    """Returns the status of ``GET /health``, and whether the engine reports that it drains.

    Raises:
        UpstreamError: no response.
    """
    connection = await endpoint.pool.connect()
    try:
        await send_get(connection, endpoint.authority, paths.HEALTH)
        return connection.status, DRAINING in connection.headers
    finally:
        endpoint.pool.discard(connection)
