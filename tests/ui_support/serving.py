"""A simulated router in a thread of its own, which a test stops and starts again on the same port."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web
from benchmarks.fleet import free_port

from ui_support.simulated import STATIC, application

SECONDS = 60.0


class Simulated:
    """Serves one scenario, once it is started.

    Attributes:
        origin: scheme, host and port.
    """

    def __init__(self, scenario: str, static: Path = STATIC, **options: Any) -> None:
        self._make = lambda: application(scenario, static, **options)
        self._port = free_port()
        self.origin = f"http://127.0.0.1:{self._port}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="simulated")
        self._runner: web.AppRunner | None = None
        self._thread.start()

    def start(self) -> None:
        """Listen."""
        self._await(self._start())

    def stop(self) -> None:
        """Cut every connection and listen no more."""
        if self._runner is not None:
            self._await(self._runner.cleanup())
            self._runner = None

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        self._await(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS)
        self._loop.close()

    async def _start(self) -> None:
        self._runner = web.AppRunner(self._make(), shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()

    def _await(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(SECONDS)


async def _cancel_all() -> None:
    """Handlers whose client went away may still be writing to it."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextlib.contextmanager
def simulated(scenario: str, **options: Any) -> Iterator[Simulated]:
    """One that serves, and is gone afterwards; ``options`` as `ui_support.simulated.application` takes them."""
    server = Simulated(scenario, **options)
    try:
        server.start()
        yield server
    finally:
        server.close()


Simulate = Callable[..., Simulated]
"""As `simulated`, of which a fixture makes an end."""
