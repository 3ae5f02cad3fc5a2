"""A service on the model of engines: a router that chooses the engine with the fewest requests, engines that take a
while to start and drain before they go, and a policy that is asked every few seconds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.scaling.engine import Engine, Profile, Request
from blade_operator.scaling.load import Load

INTERVAL: Final = 10.0
"""Seconds between two decisions."""
WINDOW: Final = 60.0
"""Seconds that rates and percentiles are of."""

Scaler = Callable[[Load, int], int]
"""From a load, and the engines that there are to be, to those that there are to be from now on."""


@dataclass(slots=True)
class Result:
    """What came of one trace with one policy."""

    requests: Sequence[Request]
    engine_seconds: float = 0.0
    """Of engines that start, answer or drain."""
    counts: list[tuple[float, int]] = field(default_factory=list)
    """Engines decided, when that changed."""

    def attainment(self, ttft: float, tpot: float) -> float:
        """Share of the requests within both."""
        met = sum(each.ttft <= ttft and each.tpot <= tpot for each in self.requests)
        return met / max(1, len(self.requests))

    def most_reversals(self, window: float) -> int:
        """The most changes of direction within any ``window`` seconds."""
        directions = [
            (at, count > before) for (at, count), (_, before) in zip(self.counts[1:], self.counts, strict=False)
        ]
        times = [at for (at, up), (_, last) in zip(directions[1:], directions, strict=False) if up != last]
        return max((sum(0 <= other - at <= window for other in times) for at in times), default=0)


class World:
    """One run."""

    def __init__(self, profile: Profile, requests: Sequence[Request], engines: int) -> None:
        self._profile = profile
        self._requests = requests
        self._engines = [Engine(profile, 0.0) for _ in range(engines)]
        self._starting: deque[float] = deque()
        """When each will answer."""
        self._draining: list[Engine] = []
        self._held: deque[Request] = deque()
        self._events: list[tuple[float, int, Engine]] = []
        self._numbers = 0
        self._first_tokens: deque[Request] = deque()
        self._ended: deque[Request] = deque()
        self._arrived = 0

    def run(self, scaler: Scaler, seconds: float) -> Result:
        """Until all requests have ended. Decisions are made for ``seconds``."""
        result = Result(self._requests, counts=[(0.0, len(self._engines))])
        now, wanted = 0.0, len(self._engines)
        while now < seconds or self._held or any(each.load for each in (*self._engines, *self._draining)):
            until = now + INTERVAL
            self._pass(now, until)
            result.engine_seconds += INTERVAL * (len(self._engines) + len(self._starting) + len(self._draining))
            now = until
            decided = scaler(self._load(now), wanted)
            if decided != wanted:
                result.counts.append((now, decided))
                wanted = decided
            self._scale(now, wanted)
        return result

    def _pass(self, now: float, until: float) -> None:
        """Everything between two decisions."""
        while True:
            arrival = self._requests[self._arrived].at if self._arrived < len(self._requests) else math.inf
            ready = self._starting[0] if self._starting else math.inf
            time = min(arrival, ready)
            if time > until:
                break
            if ready <= arrival:
                self._starting.popleft()
                self._engines.append(Engine(self._profile, ready))
                while self._held:
                    self._send(ready, self._held.popleft())
            else:
                self._arrived += 1
                self._send(arrival, self._requests[self._arrived - 1])
        for engine in (*self._engines, *self._draining):
            self._ended.extend(engine.advance(until))
        self._draining = [engine for engine in self._draining if engine.load]

    def _send(self, now: float, request: Request) -> None:
        if not self._engines:
            self._held.append(request)
            return
        engine = min(self._engines, key=lambda each: each.load)
        self._ended.extend(engine.advance(now))
        engine.add(request)

    def _scale(self, now: float, wanted: int) -> None:
        there = len(self._engines) + len(self._starting)
        for _ in range(wanted - there):
            self._starting.append(now + self._profile.start)
        for _ in range(there - wanted):
            if self._starting:
                self._starting.pop()
                continue
            engine = min(self._engines, key=lambda each: each.load)
            self._engines.remove(engine)
            self._draining.append(engine)

    def _load(self, now: float) -> Load:
        while self._ended and self._ended[0].end < now - WINDOW:
            self._ended.popleft()
        recent = [each for each in self._ended if each.end >= now - WINDOW]
        passed = min(WINDOW, now)
        arrived = 0
        index = self._arrived
        prompts = 0
        while index and self._requests[index - 1].at >= now - passed:
            index -= 1
            arrived += 1
            prompts += self._requests[index].prompt
        first = sorted(
            each.ttft
            for each in self._requests[max(0, index - 500) : self._arrived]
            if now - passed <= each.first <= now
        )
        tpots = sorted(each.tpot for each in recent if each.completion > 1)
        running = sum(each.running for each in self._engines)
        return Load(
            at=now,
            ready=len(self._engines),
            starting=len(self._starting),
            running=running,
            queued=len(self._held) + sum(len(each.waiting) for each in self._engines),
            arrivals=arrived / passed,
            prompt_tokens=prompts / passed,
            completion_tokens=sum(each.completion for each in recent) / passed,
            ttft=percentile(first, 0.9),
            tpot=percentile(tpots, 0.9),
            mean_tpot=percentile(tpots, 0.5),
        )


def percentile(ordered: Sequence[float], share: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
