"""Which LoRA adapters have a slot on the device, and for which requests.

A running request holds its adapter's slot. A slot that no running request holds keeps its adapter until another one
needs it; the least recently used one makes room.
"""

from __future__ import annotations

from collections import Counter


class AdapterResidency:
    """The adapter slots ``1 .. slots``. Adapters are known by their numbers; 0 is none."""

    def __init__(self, slots: int = 0) -> None:
        self.num_slots = slots
        self._free = list(range(slots, 0, -1))
        self._slot_of: dict[int, int] = {}
        """Adapter → slot, of all that have one."""
        self._idle: dict[int, None] = {}
        """Of these, those without running requests, the least recently used first."""
        self._running: Counter[int] = Counter()
        self._live: Counter[int] = Counter()
        self._updates: list[tuple[int, int]] = []
        self.hits = 0
        """Requests that found their adapter in a slot."""
        self.loads = 0
        """Adapters that took a slot."""

    def has_room(self, adapter: int) -> bool:
        """Whether a request with ``adapter`` can run now."""
        return not adapter or adapter in self._slot_of or bool(self._free) or bool(self._idle)

    def take(self, adapter: int) -> int:
        """A request with ``adapter`` begins to run; the slot of its adapter, 0 for none."""
        if not adapter:
            return 0
        slot = self._slot_of.get(adapter)
        if slot is None:
            if not self._free:
                self.forget(next(iter(self._idle)))
            slot = self._slot_of[adapter] = self._free.pop()
            self._updates.append((slot, adapter))
            self.loads += 1
        else:
            self.hits += 1
        self._idle.pop(adapter, None)
        self._running[adapter] += 1
        return slot

    def leave(self, adapter: int) -> None:
        """A request with ``adapter`` runs no more: it ended, or was preempted."""
        if not adapter:
            return
        self._running[adapter] -= 1
        if not self._running[adapter]:
            del self._running[adapter]
            self._idle[adapter] = None

    def forget(self, adapter: int) -> None:
        """Give the slot of ``adapter``, which no running request holds, to others; it may have none."""
        assert adapter not in self._running, f"adapter {adapter} is in use"
        slot = self._slot_of.pop(adapter, None)
        if slot is not None:
            del self._idle[adapter]
            self._free.append(slot)

    def added(self, adapter: int) -> None:
        """A request with ``adapter`` has come."""
        if adapter:
            self._live[adapter] += 1

    def ended(self, adapter: int) -> None:
        """A request with ``adapter`` has ended, wherever it was."""
        if adapter:
            self._live[adapter] -= 1
            if not self._live[adapter]:
                del self._live[adapter]

    def live(self, adapter: int) -> int:
        """Requests with ``adapter`` that have not ended."""
        return self._live[adapter]

    def has_slot(self, adapter: int) -> bool:
        """Whether ``adapter`` is on the device."""
        return adapter in self._slot_of

    def take_updates(self) -> list[tuple[int, int]]:
        """Slots that adapters took since the last call, each with its adapter."""
        updates, self._updates = self._updates, []
        return updates
