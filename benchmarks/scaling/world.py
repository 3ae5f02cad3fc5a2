"""A service on the model of engines: a router that chooses the engine where a request waits least, engines that take a
while to start and drain before they go, and a policy that is asked every few seconds."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import attrgetter
from typing import Final

from benchmarks.scaling.engine import SETTLED, Engine, Profile, Request
from blade_operator.scaling.load import Load

INTERVAL: Final = 10.0
"""Seconds between two decisions."""
WINDOW: Final = 60.0
"""Seconds that rates and percentiles are of."""

AT: Final = attrgetter("at")
LOAD: Final = attrgetter("load")
WAIT: Final = attrgetter("wait")

Scaler = Callable[[Load, int], int]
"""From a load, and the engines that there are to be, to those that there are to be from now on."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What requests are to get."""

    ttft: float
    """Seconds."""
    tpot: float
    """Seconds."""
    share: float
    """Of the requests, that is to be within both."""

    def kept(self, request: Request) -> bool:
        """Whether ``request`` got it."""
        return request.ttft <= self.ttft and request.tpot <= self.tpot


@dataclass(slots=True)
class Result:
    """What came of one trace with one policy."""

    requests: Sequence[Request]
    engine_seconds: float = 0.0
    """Of engines that start, answer or drain, once settled."""
    counts: list[tuple[float, int]] = field(default_factory=list)
    """Engines decided, when that changed."""

    @property
    def hours(self) -> float:
        """Replica-hours."""
        return self.engine_seconds / 3600

    def attainment(self, promise: Promise) -> float:
        """Share of the requests within the targets."""
        counted = self.requests[bisect_left(self.requests, SETTLED, key=AT) :]
        return sum(map(promise.kept, counted)) / max(1, len(counted))

    def most_reversals(self, window: float) -> int:
        """The most changes of direction between changes that are less than ``window`` seconds apart."""
        changes = zip(self.counts[1:], self.counts, strict=False)
        ups = [(at, count > before) for (at, count), (_, before) in changes if at >= SETTLED]
        most = 0
        for first, (start, _) in enumerate(ups):
            within = [up for at, up in ups[first:] if at - start < window]
            most = max(most, sum(one != other for one, other in pairwise(within)))
        return most


class World:
    """One run."""

    def __init__(self, profile: Profile, requests: Sequence[Request], engines: int, promise: Promise) -> None:
        """Latencies are reported at the promised percentile."""
        self._profile = profile
        self._requests = requests
        self._times = [each.at for each in requests]
        self._prompts = [0]
        for each in requests:
            self._prompts.append(self._prompts[-1] + each.prompt)
        self._promise = promise
        self._late = 0
        self._most_late = (1.0 - promise.share) * sum(at >= SETTLED for at in self._times)
        self._engines = [Engine(profile, 0.0) for _ in range(engines)]
        self._starting: deque[float] = deque()
        """When each will answer."""
        self._draining: list[Engine] = []
        self._held: deque[Request] = deque()
        self._first: list[Request] = []
        """Whose first token came."""
        self._ended: list[Request] = []
        """The same of those that ended; both since the decision before."""
        self._minute: deque[tuple[list[float], list[float], int]] = deque(maxlen=round(WINDOW / INTERVAL))
        """TTFT, TPOT and tokens of these, for each decision."""
        self._arrived = 0

    def run(self, scaler: Scaler, seconds: float, *, measured: bool = True) -> Result:
        """Until all requests have ended. Decisions are made for ``seconds``. Without ``measured`` the scaler is told
        the time only, and the run ends once the promise cannot be kept any more: what has not ended then counts as
        late."""
        result = Result(self._requests, counts=[(0.0, len(self._engines))])
        now, wanted = 0.0, len(self._engines)
        while now < seconds or self._held or any(each.load for each in (*self._engines, *self._draining)):
            if now >= SETTLED:
                there = len(self._engines) + len(self._starting) + len(self._draining)
                result.engine_seconds += INTERVAL * there
            now += INTERVAL
            self._pass(now)
            if not measured and self._late > self._most_late:
                break
            decided = scaler(self._load(now) if measured else Load(now, len(self._engines)), wanted)
            if decided != wanted:
                result.counts.append((now, decided))
                wanted = decided
            self._scale(now, wanted)
        return result

    def _pass(self, until: float) -> None:
        """Everything between two decisions."""
        while True:
            arrival = self._times[self._arrived] if self._arrived < len(self._times) else math.inf
            ready = self._starting[0] if self._starting else math.inf
            if min(arrival, ready) > until:
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
            self._advance(engine, until)
        self._draining = [engine for engine in self._draining if engine.load]

    def _send(self, now: float, request: Request) -> None:
        if not self._engines:
            self._held.append(request)
            return
        engine = min(self._engines, key=WAIT)
        self._advance(engine, now)
        engine.add(request, now)

    def _advance(self, engine: Engine, to: float) -> None:
        if engine.event > to:
            return
        ended = engine.advance(to)
        self._late += sum(each.at >= SETTLED and not self._promise.kept(each) for each in ended)
        self._ended.extend(ended)
        self._first.extend(engine.first)
        engine.first.clear()

    def _scale(self, now: float, wanted: int) -> None:
        there = len(self._engines) + len(self._starting)
        for _ in range(wanted - there):
            self._starting.append(now + self._profile.start)
        for _ in range(there - wanted):
            if self._starting:
                self._starting.pop()
                continue
            engine = min(self._engines, key=LOAD)
            self._engines.remove(engine)
            self._draining.append(engine)

    def _load(self, now: float) -> Load:
        """What routers report: percentiles and rates of the last minute."""
        self._minute.append(
            (
                [each.ttft for each in self._first],
                [each.tpot for each in self._ended if each.completion > 1],
                sum(each.completion for each in self._ended),
            )
        )
        self._first.clear()
        self._ended.clear()
        passed = min(WINDOW, now)
        before = bisect_left(self._times, now - passed, 0, self._arrived)
        ttfts = sorted(chain.from_iterable(each for each, _, _ in self._minute))
        tpots = sorted(chain.from_iterable(each for _, each, _ in self._minute))
        return Load(
            at=now,
            ready=len(self._engines),
            starting=len(self._starting),
            running=sum(each.running for each in self._engines),
            queued=len(self._held) + sum(len(each.waiting) for each in self._engines),
            arrivals=(self._arrived - before) / passed,
            prompt_tokens=(self._prompts[self._arrived] - self._prompts[before]) / passed,
            completion_tokens=sum(each for _, _, each in self._minute) / passed,
            ttft=percentile(ttfts, self._promise.share),
            tpot=percentile(tpots, self._promise.share),
            mean_tpot=percentile(tpots, 0.5),
            recent_arrivals=(self._arrived - bisect_left(self._times, now - INTERVAL, 0, self._arrived)) / INTERVAL,
        )


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Of ``ordered`` numbers; None when there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
