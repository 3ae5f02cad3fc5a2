"""From the signals of a service's routers to the load that a decision is made of.

Routers count tokens; rates are differences of the counters over the last minute. A router that does not respond, or
says what cannot be, is left out, and the load is then known to be incomplete: nothing is scaled down by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from blade_operator.scaling.load import Load
from blade_protocol.signals import Percentiles, RouterSignals

WINDOW: Final = 60.0
"""Seconds over which counters are compared; routers' own rates and percentiles are of the same time."""
STALE: Final = 60.0
"""Seconds that a router's time may differ from the operator's."""
_LEAST_GAP: Final = 5.0
"""Seconds between two samples, at least."""

Percentile = Literal[50, 90, 99]


@dataclass(frozen=True, slots=True)
class Sample:
    """A router's counters at one time."""

    started: float
    at: float
    arrivals: int
    """Requests."""
    prompt: int
    """Prompt tokens that were computed: without those from a prefix cache."""
    completion: int


Samples = Mapping[str, tuple[Sample, ...]]
"""Of each router by its pod's name, oldest first."""


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a service, counted."""

    ready: int
    starting: int
    """They are to be ready soon."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the routers said, together."""

    load: Load | None
    """None: nobody said anything of use."""
    samples: Samples
    problem: str = ""
    """Why there is no load: ``NoMetrics`` or ``StaleMetrics``; empty when there is one."""
    message: str = ""
    complete: bool = True
    """Whether each router that is ready responded."""
    has_rates: bool = True
    """Whether the rates of tokens are known: they are from the second look at a router on."""


def measure(
    signals: Mapping[str, RouterSignals],
    routers: Iterable[str],
    samples: Samples,
    engines: Engines,
    at: float,
    percentile: Percentile = 90,
) -> Measured:
    """The load at ``at`` (Unix time). ``routers``: names of the pods that are ready, who ought to respond."""
    known = set(routers)
    sane = {name: each for name, each in signals.items() if _is_sane(each)}
    fresh = {name: each for name, each in sane.items() if abs(each.time - at) <= STALE}
    if not fresh:
        return Measured(None, samples, *_problem(signals, sane, known, at), complete=False)
    sampled = {name: _sampled(samples.get(name, ()), each) for name, each in fresh.items()}
    rates = [_rates(each) for each in sampled.values()]
    has_rates = all(rate is not None for rate in rates)
    services = [service for each in fresh.values() for service in each.services]
    load = Load(
        at=at,
        ready=engines.ready,
        starting=engines.starting,
        idle=_idle(fresh.values()),
        running=float(sum(each.running for each in services)),
        queued=float(sum(each.waiting for each in services)),
        arrivals=sum(each.arrivals_per_second for each in fresh.values()),
        recent_arrivals=sum(map(_recent, sampled.values())) if has_rates else None,
        prompt_tokens=sum(rate[0] for rate in rates if rate is not None),
        completion_tokens=sum(rate[1] for rate in rates if rate is not None),
        ttft=_mean((each.arrivals_per_second, _at(each.ttft_seconds, percentile)) for each in fresh.values()),
        tpot=_mean((each.arrivals_per_second, _at(each.tpot_seconds, percentile)) for each in fresh.values()),
        mean_tpot=_mean((each.arrivals_per_second, each.tpot_seconds.p50) for each in fresh.values()),
    )
    return Measured(load, sampled, complete=known <= fresh.keys(), has_rates=has_rates)


def _problem(
    signals: Mapping[str, RouterSignals], sane: Mapping[str, RouterSignals], routers: set[str], at: float
) -> tuple[str, str]:
    if sane:
        name, late = max(((name, at - each.time) for name, each in sane.items()), key=lambda each: abs(each[1]))
        return "StaleMetrics", f"the metrics of router {name} are {late:.0f} s old by this clock: are all clocks right?"
    if signals:
        return "NoMetrics", f"router {min(signals)} reports numbers that cannot be"
    return "NoMetrics", "no router responds" if routers else "no router is ready"


def _is_sane(signals: RouterSignals) -> bool:
    numbers = [signals.started, signals.time, signals.arrivals_per_second, signals.idle_seconds or 0.0]
    for each in (signals.ttft_seconds, signals.tpot_seconds):
        numbers += [each.p50, each.p90, each.p99]
    counts = [signals.prompt_tokens, signals.cached_tokens, signals.completion_tokens]
    counts += [count for each in signals.services for count in (each.running, each.queued_requests, each.held_requests)]
    return all(math.isfinite(number) and number >= 0 for number in (*numbers, *counts))


def _sampled(samples: tuple[Sample, ...], signals: RouterSignals) -> tuple[Sample, ...]:
    """With the counters of now; one that restarted began anew."""
    computed = max(0, signals.prompt_tokens - signals.cached_tokens)
    latest = Sample(signals.started, signals.time, signals.arrivals, computed, signals.completion_tokens)
    kept = [each for each in samples if each.started == latest.started and each.at < latest.at]
    if not kept and latest.at - latest.started <= WINDOW:
        kept = [Sample(latest.started, latest.started, 0, 0, 0)]
    if len(kept) > 1 and kept[-1].at - kept[-2].at < _LEAST_GAP:
        del kept[-1]
    while len(kept) > 1 and latest.at - kept[1].at >= WINDOW:
        del kept[0]
    return (*kept, latest)


def _rates(samples: tuple[Sample, ...]) -> tuple[float, float] | None:
    """Computed prompt tokens and completion tokens a second; None: there is one sample only."""
    first, last = samples[0], samples[-1]
    seconds = last.at - first.at
    if seconds <= 0:
        return None
    return max(0, last.prompt - first.prompt) / seconds, max(0, last.completion - first.completion) / seconds


def _idle(signals: Iterable[RouterSignals]) -> float | None:
    """Seconds since the last request at any of them; None: some do not say."""
    seconds = [each.idle_seconds for each in signals]
    return None if None in seconds else min(each for each in seconds if each is not None)


def _recent(samples: tuple[Sample, ...]) -> float:
    """Requests a second since the sample before the last."""
    before, last = samples[-2:]
    return max(0, last.arrivals - before.arrivals) / (last.at - before.at)


def _at(percentiles: Percentiles, percentile: Percentile) -> float:
    return {50: percentiles.p50, 90: percentiles.p90, 99: percentiles.p99}[percentile]


def _mean(values: Iterable[tuple[float, float]]) -> float | None:
    """The mean of what was measured, by weight; None when nothing was."""
    measured = [(weight + 1e-6, value) for weight, value in values if value > 0]
    total = sum(weight for weight, _ in measured)
    return sum(weight * value for weight, value in measured) / total if measured else None
