"""An event loop in which nothing waits: time advances to the next timer.

Only for what lives in the process (timers, futures, queues); a socket would never get the time to respond.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """``loop.time()`` is the virtual time, from 0."""

    def __init__(self) -> None:
        super().__init__(_VirtualSelector(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _VirtualSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits for something that will not come")
        if timeout > 0:
            self._loop.now += timeout
        return super().select(0)


def run_virtually(work: Coroutine[Any, Any, _T]) -> _T:
    """Like ``asyncio.run``, at once."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
