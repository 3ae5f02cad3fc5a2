"""Engines that come and go, adapters that are loaded into them, and requests, second by second.

An engine's host memory holds a number of adapters; beyond that the least recently used one makes room, as in vLLM and
in ours. A request is a hit when the engine that gets it has its adapter in host memory. It goes to the engine with the
fewest requests of those that list the adapter: the same router for every rule. Names that are listed and are not in
memory are read at their first request. An adapter that moves is unloaded once its new engines have it.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from benchmarks.adapters.rules import Rule


@dataclass(frozen=True)
class World:
    """What happens, whatever the rule."""

    adapters: int = 1000
    engines: int = 32
    room: int = 64
    """Adapters that the host memory of one engine holds."""
    skew: float = 1.0
    """Exponent of Zipf's law of the adapters' popularity."""
    seconds: int = 1800
    requests: int = 50
    """A second."""
    lifetime: float = 1800.0
    """Seconds until an engine dies, on average."""
    outage: float = 60.0
    """Seconds until it is back, with an empty memory, on average."""
    reaction: int = 2
    """Seconds between a change of the engines and the loading that follows from it."""
    loads: int = 10
    """Adapters that an engine reads a second."""
    stay: float = 10.0
    """Seconds that a request runs."""


@dataclass
class Result:
    """What came of it, from the first second in which everything had been loaded."""

    requests: int = 0
    hits: int = 0
    homeless: int = 0
    """Requests for which no engine listed the adapter."""
    loads: int = 0
    """Adapters read from disk, when they are placed or for a request."""
    first_loads: int = 0
    """Of the beginning, which are not among the others."""
    lost: int = 0
    """Copies in host memory that went with engines."""
    busiest: float = 0.0
    """Requests of the busiest engine beside the mean."""

    @property
    def hit_rate(self) -> float:
        return self.hits / max(1, self.requests)


@dataclass
class _Engine:
    name: str
    room: int
    up: bool = True
    listed: set[str] = field(default_factory=set)
    memory: OrderedDict[str, None] = field(default_factory=OrderedDict)
    queue: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Adapters that wait to be read."""
    surplus: set[str] = field(default_factory=set)
    """Adapters that it lists until others have them."""
    running: int = 0
    served: int = 0

    def read(self, name: str) -> None:
        """Read ``name`` into host memory."""
        while len(self.memory) >= self.room:
            self.memory.popitem(last=False)
        self.memory[name] = None

    def die(self) -> int:
        """Lose everything; the number of adapters that were in memory."""
        lost = len(self.memory)
        self.up, self.running = False, 0
        self.listed.clear()
        self.memory.clear()
        self.queue.clear()
        self.surplus.clear()
        return lost


class Simulation:
    """One run of one rule in one world. Equal seeds: equal requests, and engines that die at equal times."""

    def __init__(self, world: World, rule: Rule, seed: int) -> None:
        self._world, self._rule = world, rule
        self._engines = [_Engine(f"engine-{at:02}", world.room) for at in range(world.engines)]
        self._names = [f"adapter-{at}" for at in range(world.adapters)]
        rng = random.Random(seed)
        ranked = rng.sample(self._names, world.adapters)
        self._weights = list(accumulate((rank + 1) ** -world.skew for rank in range(world.adapters)))
        self._ranked = ranked
        self._requests = random.Random(seed + 1)
        self._changes = list(_outages(world, random.Random(seed + 2)))
        self._ties = random.Random(seed + 3)
        self._ends: dict[int, list[_Engine]] = {}

    def run(self) -> Result:
        """Start with empty engines, load everything, then let time pass."""
        self._place()
        result = Result()
        while any(engine.queue for engine in self._engines):
            result.first_loads += self._read()
        changes, due = dict(self._changes), -1
        for second in range(self._world.seconds):
            for engine in self._ends.pop(second, ()):
                engine.running = max(0, engine.running - 1)
            for at, up in changes.get(second, ()):
                engine = self._engines[at]
                if up:
                    engine.up = True
                else:
                    result.lost += engine.die()
                due = second + self._world.reaction
            if second == due:
                self._place()
            result.loads += self._read()
            for _ in range(self._world.requests):
                self._request(second, result)
        served = [engine.served for engine in self._engines]
        result.busiest = max(served) * len(served) / max(1, sum(served))
        return result

    def _place(self) -> None:
        """Have the engines that are up list and read what the rule gives them."""
        ready = [engine for engine in self._engines if engine.up]
        present: dict[str, set[str]] = {name: set() for name in self._names}
        for engine in ready:
            for name in engine.listed:
                present[name].add(engine.name)
        places = self._rule.decide(self._names, [engine.name for engine in ready], self._world.room, present)
        by_name = {engine.name: engine for engine in ready}
        wanted: dict[str, set[str]] = {engine.name: set() for engine in ready}
        for name, engines in places.items():
            for each in engines:
                wanted[each].add(name)
        for name, adapters in wanted.items():
            engine = by_name[name]
            engine.surplus = engine.listed - adapters
            for adapter in sorted(adapters - engine.listed):
                engine.queue[adapter] = None
                engine.listed.add(adapter)

    def _read(self) -> int:
        """A second of reading on every engine; the number of adapters that were read."""
        count = 0
        for engine in self._engines:
            for _ in range(min(self._world.loads, len(engine.queue))):
                engine.read(engine.queue.popitem(last=False)[0])
                count += 1
        awaited = {name for engine in self._engines for name in engine.queue}
        for engine in self._engines:
            for name in engine.surplus - awaited:
                engine.surplus.discard(name)
                engine.listed.discard(name)
                engine.memory.pop(name, None)
        return count

    def _request(self, second: int, result: Result) -> None:
        name = self._requests.choices(self._ranked, cum_weights=self._weights)[0]
        result.requests += 1
        listing = [engine for engine in self._engines if name in engine.listed and name not in engine.queue]
        if not listing:
            result.homeless += 1
            return
        engine = min(listing, key=lambda each: (each.running, self._ties.random()))
        engine.running += 1
        engine.served += 1
        self._ends.setdefault(second + int(self._world.stay), []).append(engine)
        if name in engine.memory:
            engine.memory.move_to_end(name)
            result.hits += 1
        else:
            engine.read(name)
            result.loads += 1


def _outages(world: World, rng: random.Random) -> Iterator[tuple[int, list[tuple[int, bool]]]]:
    """Yields the seconds in which engines go or come back, with each one's number and whether it comes."""
    found: dict[int, list[tuple[int, bool]]] = {}
    for engine in range(world.engines):
        time = 0.0
        while True:
            time += 1 + rng.expovariate(1 / world.lifetime)
            if time >= world.seconds:
                break
            found.setdefault(int(time), []).append((engine, False))
            time += 5 + rng.expovariate(1 / world.outage)
            found.setdefault(int(time), []).append((engine, True))
    yield from sorted(found.items())
