"""Who knows the future: the fewest engine-hours with which nine and a half of ten requests are in time.

At each decision there are so many engines as the highest rate until one that is asked for now has had its first minute
needs, by the engines' own numbers, times a factor; the least factor that is enough is found by bisection.
"""

from __future__ import annotations

import math

from benchmarks.scaling.engine import Profile
from benchmarks.scaling.traces import Trace
from benchmarks.scaling.world import INTERVAL, Result, Scaler, World, percentile
from blade_operator.scaling.capacity import LEAST_MEASUREMENTS, Capacity, Demand
from blade_operator.scaling.load import Load

_AHEAD: int = 3
"""Decisions for which a new engine is to be enough."""


def oracle(profile: Profile, trace: Trace, ttft: float, tpot: float, least: int, most: int, share: float) -> Result:
    """The cheapest of these runs in which ``share`` of the requests are in time; the dearest if none is."""
    low, high, best = 0.1, 4.0, None
    for _ in range(12):
        factor = (low + high) / 2
        scaler = _clairvoyant(profile, trace, ttft, tpot, least, most, factor)
        start = scaler(Load(0.0, 0), 0)
        result = World(profile, trace.requests(), start).run(scaler, trace.seconds)
        if result.attainment(ttft, tpot) >= share:
            high, best = factor, result
        else:
            low = factor
            best = best or result
    assert best is not None
    return best


def _clairvoyant(
    profile: Profile, trace: Trace, ttft: float, tpot: float, least: int, most: int, factor: float
) -> Scaler:
    requests = trace.requests()
    mean_prompt = sum(each.prompt for each in requests) / len(requests)
    mean_completion = sum(each.completion for each in requests) / len(requests)
    most_prompt = percentile(sorted(each.prompt for each in requests), 0.9) or 0.0
    known = Capacity(
        weights=(profile.fixed, profile.per_request, profile.per_token),
        measurements=LEAST_MEASUREMENTS,
        ttft=1.5 * profile.fixed + profile.per_token * most_prompt,
    )

    def needed(rate: float) -> float:
        low, high = 0.0, 1000.0  # requests a second of one engine
        for _ in range(40):
            one = (low + high) / 2
            expected = known.predict(Demand(one, mean_prompt, mean_completion))
            low, high = (one, high) if expected.ttft <= ttft and expected.tpot <= tpot else (low, one)
        return rate / low

    one = needed(1.0)

    def scale(load: Load, engines: int) -> int:
        ahead = [load.at + each * INTERVAL for each in range(int(profile.start / INTERVAL) + _AHEAD + 1)]
        rate = max(trace.rate(at) for at in ahead)
        return min(most, max(least, math.ceil(rate * one * factor)))

    return scale
