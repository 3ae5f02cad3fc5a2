"""The ledger of a placement while it is being made: what each engine has been given so far."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence


class Ledger:
    """Copies by adapter and by engine, and the room that is left.

    Args:
        engines: those that may have adapters, in order.
        capacity: by engine, adapters that its host memory has room for.
        closed: engines that take nothing new.
        current: by adapter, the engines that have it now.
    """

    def __init__(
        self,
        engines: Sequence[str],
        capacity: Mapping[str, int],
        closed: Collection[str],
        current: Mapping[str, Collection[str]],
    ) -> None:
        self.capacity = capacity
        self.open = [engine for engine in engines if engine not in closed]
        self._current = current
        self._engines: dict[str, set[str]] = {}
        """By adapter."""
        self._in_memory: dict[str, dict[str, bool]] = {engine: {} for engine in engines}
        """By engine the adapters that take room, and whether each is pinned."""
        self._pinned = dict.fromkeys(engines, 0)
        self._count = dict.fromkeys(engines, 0)
        self._load = dict.fromkeys(engines, 0.0)
        self._loads: dict[str, float] = {}
        """Of one copy, by adapter."""

    def of(self, adapter: str) -> Collection[str]:
        """The engines that ``adapter`` was given."""
        return self._engines.get(adapter, ())

    def current(self, adapter: str) -> Iterator[str]:
        """Yields the engines that have ``adapter`` now and were not given it yet, in order."""
        for engine in sorted(self._current.get(adapter, ())):
            if engine in self._in_memory and engine not in self.of(adapter):
                yield engine

    def count(self, engine: str) -> int:
        """Copies that ``engine`` was given, those without memory included."""
        return self._count[engine]

    def load(self, engine: str) -> float:
        """Load of all copies of ``engine``."""
        return self._load[engine]

    def has_room(self, engine: str, adapter: str, in_memory: bool, pinned: bool) -> bool:
        """Whether ``engine`` can be given one more copy, of an ``adapter`` that it was not given yet.

        Pinned adapters leave one place for all others, or those could not be used there.
        """
        if engine in self.of(adapter):
            return False
        if not in_memory:
            return True
        return self._room(engine) > 0 and (not pinned or self._pinned[engine] < self.capacity[engine] - 1)

    @property
    def is_full(self) -> bool:
        """Whether no engine has room for any adapter."""
        return all(self._room(engine) <= 0 for engine in self._in_memory)

    def _room(self, engine: str) -> int:
        return self.capacity.get(engine, 0) - len(self._in_memory[engine])

    def put(self, adapter: str, engine: str, *, in_memory: bool, pinned: bool, load: float) -> None:
        """Give ``engine`` a copy."""
        self._engines.setdefault(adapter, set()).add(engine)
        self._loads[adapter] = load
        self._count[engine] += 1
        self._load[engine] += load
        if in_memory:
            self._in_memory[engine][adapter] = pinned
            self._pinned[engine] += pinned

    def make_way(self, adapter: str, pinned: bool, load: float) -> bool:
        """Give ``adapter`` an engine that is full, one of whose copies goes to an engine that has room.

        That is needed where the only engines with room have the adapter already. False when there is no such pair.
        """
        if pinned:
            return False
        spare = [engine for engine in self.open if self._room(engine) > 0]
        for target in spare:
            for full in self.open:
                if full in self.of(adapter) or full == target:
                    continue
                if (moved := self._movable(full, target)) is not None:
                    self._move(moved, full, target)
                    self.put(adapter, full, in_memory=True, pinned=False, load=load)
                    return True
        return False

    def _movable(self, source: str, target: str) -> str | None:
        """An adapter that can go from ``source`` to ``target``; one that ``source`` does not have yet comes first."""
        names = [name for name, pinned in self._in_memory[source].items() if not pinned and target not in self.of(name)]
        return min(names, key=lambda name: (source in self._current.get(name, ()), name), default=None)

    def _move(self, adapter: str, source: str, target: str) -> None:
        self._engines[adapter].remove(source)
        self._engines[adapter].add(target)
        self._in_memory[target][adapter] = self._in_memory[source].pop(adapter)
        for engine, sign in ((source, -1), (target, 1)):
            self._count[engine] += sign
            self._load[engine] += sign * self._loads[adapter]
