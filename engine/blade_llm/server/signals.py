"""What ends a server: SIGTERM and SIGINT drain it, and a SIGINT that follows ends it at once.

A SIGTERM that follows says nothing new: a kubelet that was restarted, or a control loop, sends another one to what it
finds still draining, and whoever has no more patience sends SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable


def drain_on_signals(stop: asyncio.Event, kill: Callable[[], None]) -> None:
    """Set ``stop`` at the first signal. At a later SIGINT ``kill`` the other processes, and exit with 1."""

    def interrupted() -> None:
        if stop.is_set():
            kill()
            os._exit(1)
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupted)
