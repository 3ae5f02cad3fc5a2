"""Which adapters are in host memory, and which make room for others."""

from __future__ import annotations

from collections.abc import Callable

from blade_llm.cache.adapters import AdapterResidency
from blade_llm.engine.adapters.entry import Adapter, LoadedAdapter
from blade_protocol.adapters import AdapterTier


class HostMemory:
    """Room for ``capacity`` adapters. The least recently used one that no request uses makes room for the next.

    Args:
        loaded: where the runner finds weights, by number.
        forget: called with the number of each adapter that leaves.
    """

    def __init__(
        self,
        residency: AdapterResidency,
        loaded: dict[int, LoadedAdapter],
        capacity: int,
        forget: Callable[[int], None],
    ) -> None:
        self.capacity = capacity
        self._residency = residency
        self._loaded = loaded
        self._forget = forget
        self._held: dict[int, Adapter] = {}
        """The least recently used first."""
        self._leaving: list[Adapter] = []
        """Of these, those without a name: they go with their last request."""
        self.changes = 0
        """Grows with whatever comes or goes."""
        self.loads = 0
        """Adapters that were put here."""
        self.evictions = 0
        """Adapters that left for others."""

    @property
    def full(self) -> bool:
        """Whether there is room for none without another one leaving."""
        return len(self._held) >= self.capacity

    @property
    def all_pinned(self) -> bool:
        """Whether there will be room for none, whatever ends."""
        return self.full and all(adapter.pinned for adapter in self._held.values())

    @property
    def has_leaving(self) -> bool:
        """Whether an adapter is here that goes with its last request."""
        return bool(self._leaving)

    def put(self, adapter: Adapter, weights: LoadedAdapter) -> None:
        """Keep the weights of ``adapter``, for which there is room, under the number they were read."""
        adapter.number = adapter.coming
        adapter.digest, adapter.rank, adapter.nbytes = weights.digest, weights.rank, weights.nbytes
        adapter.state, adapter.reason = "loaded", ""
        self._loaded[adapter.number] = weights
        self._held[adapter.number] = adapter
        self.loads += 1
        self.changes += 1
        if not adapter.named:
            self._leaving.append(adapter)

    def leave(self, adapter: Adapter) -> None:
        """``adapter`` has lost its name."""
        if adapter.number:
            self._leaving.append(adapter)

    def touch(self, adapter: Adapter) -> None:
        """A request uses ``adapter`` now."""
        self._held[adapter.number] = self._held.pop(adapter.number)

    def make_room(self, coming: int) -> Adapter | bool | None:
        """Make room for one more than the ``coming`` that are being read.

        True: there is room; an adapter: it left; False: all are pinned or in use.
        """
        if len(self._held) + coming < self.capacity:
            return True
        for number, adapter in self._held.items():
            if not adapter.pinned and not self._residency.live(number):
                self.drop(adapter)
                self.evictions += 1
                return adapter
        return False

    def drop(self, adapter: Adapter) -> None:
        """Free the memory of ``adapter``, which no request uses."""
        self._residency.forget(adapter.number)
        del self._held[adapter.number], self._loaded[adapter.number]
        self._forget(adapter.number)
        adapter.number = 0
        self.changes += 1

    def drop_leaving(self) -> None:
        """Free what has lost its name and is used no more."""
        for adapter in self._leaving:
            if adapter.number and not self._residency.live(adapter.number):
                self.drop(adapter)
        self._leaving = [adapter for adapter in self._leaving if adapter.number]

    def tier(self, adapter: Adapter) -> AdapterTier:
        """Where the weights of ``adapter`` are."""
        if adapter.number and self._residency.has_slot(adapter.number):
            return "device"
        return "host" if adapter.number else "disk"

    def requests(self, adapter: Adapter) -> int:
        """Requests with ``adapter`` that have not ended."""
        return self._residency.live(adapter.number)

    @property
    def version(self) -> tuple[int, int]:
        """Differs when the tier of any adapter may."""
        return self.changes, self._residency.loads
