"""Processes that do nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil
from engine_support.server_process import wait_until


def wait_for_sleep(pids: Sequence[int], seconds: float = 1.0, most: float = 0.02) -> None:
    """Until none of them has used more than ``most`` seconds of CPU in ``seconds``: sooner or later, however busy the
    machine is, where one that polls never does."""

    def used() -> list[float]:
        return [sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids]

    def slept() -> bool:
        before = used()
        time.sleep(seconds)
        return all(now - then <= most for then, now in zip(before, used(), strict=True))

    wait_until(slept)
