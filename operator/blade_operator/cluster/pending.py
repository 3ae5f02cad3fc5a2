"""Keys of services that changed and wait to be looked at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from blade_operator.objects import Key


class Pending:
    """Iterate over it for ever. A key waits in it once, however often it changes meanwhile."""

    def __init__(self, first: Iterable[Key]) -> None:
        self._keys: dict[Key, None] = dict.fromkeys(first)
        self._wake = asyncio.Event()

    def note(self, key: Key) -> None:
        """``key`` changed."""
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
