"""The highest rate at which the service still keeps its objectives.

A rate passes when at least a share (the attainment, by custom 90 %) of its requests are well served, among all and
among the later half alone: above capacity a queue grows, which a short probe shows in its later half first.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from blade_llm.benchmark.load import Limit, Load
from blade_llm.benchmark.slo import Objective, well_served
from blade_llm.benchmark.statistics import Distribution, distribution
from blade_llm.benchmark.workload.arrivals import arrival_times
from blade_llm.benchmark.workload.datasets import Sample

WARM_UP: Final = 0.2
"""Share of a probe's requests that come first and are not judged: the queue of a steady state has to form."""
_HALVINGS: Final = 10
"""Halvings of a first rate that fails, before giving up."""
_DOUBLINGS: Final = 20


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """One rate tried. Times in seconds."""

    rate: float
    passed: bool
    requests: int
    """Requests that were judged."""
    well_served: float
    """Share of the judged requests."""
    failed: int
    cut_short: bool
    """Stopped as soon as it could not pass any more."""
    ttft: Distribution | None
    tpot: Distribution | None
    generator_cpu: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prober:
    """How one rate is tried."""

    new_load: Callable[[], Load]
    samples: Iterator[Sample]
    objectives: Sequence[Objective]
    attainment: float = 0.9
    requests: int = 100
    """Least number of judged requests; more when more arrive in ``seconds``."""
    seconds: float = 20.0
    burstiness: float = 1.0
    random_source: random.Random = field(default_factory=random.Random)

    def planned(self, rate: float) -> tuple[int, int]:
        """How many requests warm up, and how many are judged."""
        judged = max(self.requests, math.ceil(rate * self.seconds))
        return math.ceil(judged * WARM_UP), judged

    async def probe(self, rate: float) -> tuple[Probe, Load]:
        """Put on ``rate`` requests per second, until the last one has ended or failing is certain.

        Returns the verdict, and the load without its warm-up.
        """
        warm, judged = self.planned(rate)
        arrivals = list(itertools.islice(arrival_times(rate, self.burstiness, self.random_source), warm + judged))
        load = self.new_load()
        this = asyncio.current_task()
        shown = load.on_change
        missed = seen = 0
        hopeless = False

        def watch(load: Load) -> None:
            nonlocal missed, hopeless, seen
            shown(load)
            for request in load.finished[seen:]:
                missed += request.due >= load.started + arrivals[warm] and not well_served(request, self.objectives)
            seen = len(load.finished)
            if missed > (1 - self.attainment) * judged and not hopeless:
                hopeless = True
                task.cancel()

        load.on_change = watch
        task = asyncio.create_task(load.open_loop(self.samples, iter(arrivals), Limit()))
        try:
            await task
        except asyncio.CancelledError:
            if not hopeless or (this is not None and this.cancelling()):
                raise
        judged_load = _since(load, load.started + arrivals[warm])
        return self._verdict(rate, judged_load, hopeless), judged_load

    def _verdict(self, rate: float, judged: Load, hopeless: bool) -> Probe:
        kept = [well_served(request, self.objectives) for request in judged.finished]
        later = kept[len(kept) // 2 :]
        good = [request for request in judged.finished if request.failure is None]
        return Probe(
            rate=rate,
            passed=not hopeless and min(_share(kept), _share(later)) >= self.attainment,
            requests=len(kept),
            well_served=_share(kept),
            failed=len(kept) - len(good),
            cut_short=hopeless,
            ttft=distribution(request.ttft for request in good if request.ttft is not None),
            tpot=distribution(request.tpot for request in good if request.tpot is not None),
            generator_cpu=judged.cpu_seconds / max(judged.seconds, 1e-9),
        )


def _since(load: Load, start: float) -> Load:
    """Requests of ``load`` that were due from ``start`` on, in that order."""
    finished = sorted((request for request in load.finished if request.due >= start), key=lambda request: request.due)
    share = max(0.0, load.seconds - (start - load.started)) / max(load.seconds, 1e-9)
    return replace(
        load,
        finished=finished,
        sent=len(finished) + load.in_flight,
        started=start,
        cpu_seconds=load.cpu_seconds * share,
    )


async def find_rate(passes: Callable[[float], Awaitable[bool]], start: float, precision: float = 0.05) -> float | None:
    """The highest passing rate, to a relative ``precision``: doubled (or halved) from ``start``, then bisected.

    None when even a thousandth of ``start`` fails.
    """
    low, high = 0.0, math.inf
    rate = start
    for _ in range(_DOUBLINGS):
        if await passes(rate):
            low = rate
            rate *= 2
            if rate >= high:
                break
        else:
            high = rate
            if low:
                break
            if rate < start / 2**_HALVINGS:
                return None
            rate /= 2
    while high < math.inf and high > low * (1 + precision):
        middle = math.sqrt(low * high)
        if await passes(middle):
            low = middle
        else:
            high = middle
    return low or None


def _share(kept: Sequence[bool]) -> float:
    return sum(kept) / len(kept) if kept else 0.0
