"""The fair queue: priority bands, and in each of them deficit round-robin between keys.

Plain deficit round-robin visits every key in every round, also those whose next request costs more than the deficit
they have saved. Here each key knows the round in which it can afford its next request, and a heap the first of
them: the same order, without the visits. So the quantum can be small, which keeps turns short, at O(log keys) a
request. Nothing here knows of time, requests or endpoints.
"""

import heapq
import itertools
import math
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from blade_router.compiled.attributes import mypyc_attr

QUANTUM = 256.0
"""Tokens a key of weight 1 may spend in each round."""
LEAST_WEIGHT = 1e-3
MOST_SKIPPED = 64
"""Keys that are passed over in search of one that may have its turn."""
MOST_COST = 1 << 40
"""Tokens: the most an item costs. Beyond what a float holds its turn could not be computed."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Waiting:
    """An item that can wait in a ``FairQueue``; to be subclassed.

    Args:
        key: the API key it belongs to; keys share a band by their weights.
        weight: the key's share, relative to the others'.
        priority: its band; lower goes first.
        cost: what its turn costs its key, in tokens.
    """

    __slots__ = ("cost", "key", "priority", "weight")

    def __init__(self, key: str, weight: float, priority: int, cost: int) -> None:
        self.key = key
        self.weight = max(LEAST_WEIGHT, weight)
        self.priority = priority
        self.cost = min(max(1, cost), MOST_COST)


Item = TypeVar("Item", bound=Waiting)


class _Key(Generic[Item]):
    """The items of one key in one band, and the deficit the key has saved."""

    __slots__ = ("deficit", "entry", "items", "round")

    def __init__(self, now: int) -> None:
        self.items: OrderedDict[Item, None] = OrderedDict()
        self.deficit = 0.0
        self.round = now
        """The last round it was given its quantum for."""
        self.entry = 0
        """The number of its valid entry in the heap."""


class Band(Generic[Item]):
    """The keys of one priority band."""

    def __init__(self) -> None:
        self.keys: dict[str, _Key[Item]] = {}
        self.count = 0
        self._heap: list[tuple[int, int, str]] = []
        self._round = 0
        self._numbers = itertools.count(1)

    def push(self, item: Item) -> None:
        key = self.keys.get(item.key)
        if key is None:
            key = _Key(self._round)
            key.items[item] = None
            self._enlist(item.key, key)
        else:
            key.items[item] = None
        self.count += 1

    def pop(self) -> Item:
        """The next one; there must be one."""
        while True:
            entry = heapq.heappop(self._heap)
            if self._valid(entry):
                return self._take(entry)

    def pop_admitted(self, admits: Callable[[Item], bool]) -> Item | None:
        """The first of the keys' next ones that ``admits``; those passed over keep their turns. None: there is none.

        After ``MOST_SKIPPED`` keys it is the first of all: where so many wait, none has much.
        """
        skipped: list[tuple[int, int, str]] = []
        found = None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            if not self._valid(entry):
                continue
            if admits(next(iter(self.keys[entry[2]].items))):
                found = entry
            else:
                skipped.append(entry)
                if len(skipped) == MOST_SKIPPED:
                    found = skipped.pop(0)
        for entry in skipped:
            heapq.heappush(self._heap, entry)
        return self._take(found) if found is not None else None

    def _take(self, entry: tuple[int, int, str]) -> Item:
        """Take out the first of the key whose valid entry was just taken from the heap."""
        turn, number, name = entry
        key = self.keys[name]
        self._round = max(self._round, turn)
        item, _ = key.items.popitem(last=False)
        key.deficit += (turn - key.round) * QUANTUM * item.weight - item.cost
        key.round = turn
        self.count -= 1
        self._settle(name, key, number)
        return item

    def remove(self, item: Item) -> None:
        """Take one out that does not want to wait any more."""
        key = self.keys[item.key]
        first = next(iter(key.items)) is item
        del key.items[item]
        self.count -= 1
        if first:
            self._settle(item.key, key)

    def _settle(self, name: str, key: _Key[Item], number: int = 0) -> None:
        """The first of a key has gone: find the turn of the one behind it. Nobody saves while nothing waits."""
        if key.items:
            self._enlist(name, key, number)
        else:
            del self.keys[name]

    def _enlist(self, name: str, key: _Key[Item], number: int = 0) -> None:
        """Find the turn of a key's first. What can fail comes before anything is changed."""
        first = next(iter(key.items))
        rounds = max(0, math.ceil((first.cost - key.deficit) / (QUANTUM * first.weight)))
        turn = max(self._round, key.round + rounds)
        self.keys[name] = key
        # While what it has saved lasts it is still its turn, and it keeps its place in the round.
        key.entry = number if number and turn == self._round else next(self._numbers)
        heapq.heappush(self._heap, (turn, key.entry, name))
        if len(self._heap) > 64 + 4 * len(self.keys):  # requests that left made stale entries
            self._heap = [entry for entry in self._heap if self._valid(entry)]
            heapq.heapify(self._heap)

    def _valid(self, entry: tuple[int, int, str]) -> bool:
        key = self.keys.get(entry[2])
        return key is not None and key.entry == entry[1]


class FairQueue(Generic[Item]):
    """A fair queue: all bands."""

    def __init__(self) -> None:
        self.bands: dict[int, Band[Item]] = {}
        self._order: list[int] = []
        """The priorities in ``bands``, the best first."""
        self.count = 0

    def push(self, item: Item) -> None:
        band = self.bands.get(item.priority)
        if band is not None:
            band.push(item)
        else:
            band = Band()
            band.push(item)
            self.bands[item.priority] = band
            insort(self._order, item.priority)
        self.count += 1

    def pop(self, priority: int | None = None) -> Item:
        """The next one of the best band, or of the one named; there must be one."""
        if priority is None:
            priority = self.best
        band = self.bands[priority]
        item = band.pop()
        self._forget(priority, band)
        return item

    def pop_admitted(self, admits: Callable[[Item], bool], first: int | None = None) -> Item | None:
        """The next one that ``admits``, of the best band that has one; of the band ``first`` before all others."""
        for priority in (*(() if first is None else (first,)), *self._order):
            band = self.bands[priority]
            item = band.pop_admitted(admits)
            if item is not None:
                self._forget(priority, band)
                return item
        return None

    def remove(self, item: Item) -> None:
        band = self.bands[item.priority]
        band.remove(item)
        self._forget(item.priority, band)

    def keys(self) -> Iterator[str]:
        """Those that have something waiting, once for each of their bands."""
        for band in self.bands.values():
            yield from band.keys

    @property
    def best(self) -> int:
        """The priority that goes first."""
        return self._order[0]

    def _forget(self, priority: int, band: Band[Item]) -> None:
        self.count -= 1
        if not band.count:
            del self.bands[priority]
            self._order.remove(priority)

    # eviction when there is no room

    def eviction_candidate(self, arriving: Item) -> Item | None:
        """The request to evict for ``arriving`` from a full queue; None: ``arriving`` is the one that may not come in.

        Anyone of a worse band, the worst first; in its own band a key that has more waiting for its weight than the
        arriving one would have. So a key that offers ten times as much does not fill the queue with its own. Of a
        key the newest goes. Visits every key of one band, for a full queue only.
        """
        worst = self._order[-1]
        if worst < arriving.priority:
            return None
        keys = self.bands[worst].keys
        size = 0.0
        if worst == arriving.priority:
            mine = keys.get(arriving.key)
            size = (len(mine.items) + 1 if mine is not None else 1) / arriving.weight
        found: Item | None = None
        for key in keys.values():
            newest = next(reversed(key.items))
            taken = len(key.items) / newest.weight
            if taken > size:
                found, size = newest, taken
        return found

    def ahead(self, item: Item) -> int:
        """About how many get their turn before ``item`` would, if it came now."""
        count = sum(band.count for priority, band in self.bands.items() if priority < item.priority)
        band = self.bands.get(item.priority)
        if band is not None:
            mine = band.keys.get(item.key)
            own = len(mine.items) if mine is not None else 0
            others = len(band.keys) - (mine is not None)
            count += min(band.count, own + others * (own + 1))
        return count
