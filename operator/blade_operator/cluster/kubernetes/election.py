"""A `Lease` in a thread of its own: however busy the control loop is, renewals go out in time.

A loop that hangs is another matter: then the process fails its liveness probe.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from blade_operator.cluster.kubernetes.api import Api
from blade_operator.cluster.kubernetes.lease import Lease


class Election:
    """`Lease.acquire`, `Lease.hold` and `Lease.release` for another loop. Use it as an async context manager.

    ``connect`` and ``make`` are called in the thread, which has its own connections.
    """

    def __init__(self, connect: Callable[[], AbstractAsyncContextManager[Api]], make: Callable[[Api], Lease]) -> None:
        self._connect = connect
        self._make = make
        self._ready: asyncio.Future[None]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="lease", daemon=True)

    async def __aenter__(self) -> Election:
        self._caller = asyncio.get_running_loop()
        self._ready = self._caller.create_future()
        self._thread.start()
        await self._ready
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        await asyncio.to_thread(self._thread.join)

    async def acquire(self) -> None:
        """See `Lease.acquire`."""
        await self._in_thread(self._lease.acquire())

    async def hold(self) -> None:
        """See `Lease.hold`."""
        await self._in_thread(self._lease.hold())

    async def release(self) -> None:
        """See `Lease.release`."""
        await self._in_thread(self._lease.release())

    async def _in_thread(self, step: Coroutine[None, None, None]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(step, self._loop))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        try:
            async with self._connect() as api:
                self._lease = self._make(api)
                self._caller.call_soon_threadsafe(self._ready.set_result, None)
                await self._end.wait()
        except Exception as error:
            self._caller.call_soon_threadsafe(self._ready.set_exception, error)
