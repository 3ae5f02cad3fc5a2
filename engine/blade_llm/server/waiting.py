"""Wait for whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


async def first_of(*coroutines: Coroutine[object, object, object], timeout: float | None = None) -> bool:
    """Return when one of them is done, and cancel the others. False: none was within ``timeout`` seconds."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    return bool(done)
