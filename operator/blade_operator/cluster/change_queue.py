"""A change queue: keys of services that changed, deduplicated, for one consumer to iterate over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from blade_operator.model.objects import Key


class ChangeQueue:
    """Yields keys for ever. A key waits in the queue once, however often it is added meanwhile."""

    def __init__(self, initial: Iterable[Key]) -> None:
        self._keys: dict[Key, None] = dict.fromkeys(initial)
        self._wake = asyncio.Event()

    def add(self, key: Key) -> None:
        """Queue ``key``, whose service changed."""
        self._keys[key] = None
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[Key]:
        while True:
            while self._keys:
                key = next(iter(self._keys))
                del self._keys[key]
                yield key
            self._wake.clear()
            await self._wake.wait()
