"""Who knows the future: about the fewest replica-hours with which the promised share of the requests is in time.

It knows the trace's rate at each second to come and an engine's own numbers, and it is under the same laws as everyone:
engines take as long to start, it decides as often, and it must keep the promise itself. At each decision there are as
many engines as the rate needs from now until an engine that is asked for at the next decision would answer, times a
factor; the least factor that is enough is found by bisection, with the highest rate in that time and with its mean
(which lets go what a short peak would cost). The cheaper one is the oracle; where one number of engines throughout is
cheaper still, that is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.scaling.engine import Profile
from benchmarks.scaling.traces import Trace
from benchmarks.scaling.world import INTERVAL, Promise, Result, Scaler, World, percentile
from blade_operator.scaling.capacity import LEAST_MEASUREMENTS, Capacity, Demand
from blade_operator.scaling.load import Load

_STEPS: Final = 5
"""Of the bisection: the factor is known to about one hundredth."""
_FACTORS: Final = (0.8, 1.9)
_PART: Final = 5.0
"""Seconds between two looks at the rate."""


def oracle(profile: Profile, trace: Trace, promise: Promise, least: int, most: int) -> Result:
    """The cheapest of these runs that keeps the promise; the one that comes nearest if none does."""
    found: Result | None = None
    for over in (max, statistics.fmean):
        low, high = _FACTORS
        for _ in range(_STEPS):
            factor = (low + high) / 2
            scaler = _clairvoyant(profile, trace, promise, least, most, factor, over)
            result = run(profile, trace, scaler, scaler(Load(0.0, 0), 0), promise)
            low, high = (low, factor) if result.attainment(promise) >= promise.share else (factor, high)
            found = result if found is None else best((found, result), promise)
    assert found is not None
    return found


def cheapest_fixed(profile: Profile, trace: Trace, promise: Promise, least: int, most: int) -> Result:
    """With the fewest engines that keep the promise when their number never changes."""
    low, high, found = least, most, None
    while low <= high:
        count = (low + high) // 2
        result = run(profile, trace, fixed(count), count, promise)
        if result.attainment(promise) >= promise.share:
            high, found = count - 1, result
        else:
            low = count + 1
    return found or run(profile, trace, fixed(most), most, promise)


def fixed(count: int) -> Scaler:
    """So many engines throughout."""
    return lambda load, engines: count


def run(profile: Profile, trace: Trace, scaler: Scaler, engines: int, promise: Promise) -> Result:
    """Of a scaler that needs the time only, from ``engines`` on."""
    return World(profile, trace.requests(), engines, promise).run(scaler, trace.seconds, measured=False)


def best(runs: Sequence[Result], promise: Promise) -> Result:
    """The cheapest that keeps the promise; the one that comes nearest if none does."""
    kept = [each for each in runs if each.attainment(promise) >= promise.share]
    return min(kept, key=lambda each: each.hours) if kept else max(runs, key=lambda each: each.attainment(promise))


def most_rate(profile: Profile, prompt: float, completion: float, long_prompt: float, promise: Promise) -> float:
    """Requests a second with which one engine is within the targets, by its own numbers. ``long_prompt``: the length
    that the promised share does not exceed."""
    known = Capacity(
        weights=(profile.fixed, profile.per_request, profile.per_token),
        measurements=LEAST_MEASUREMENTS,
        ttft=1.5 * profile.fixed + profile.per_token * long_prompt,
    )
    low, high = 0.0, 1000.0
    for _ in range(40):
        rate = (low + high) / 2
        expected = known.predict(Demand(rate, prompt, completion))
        fits = expected.ttft <= promise.ttft and expected.tpot <= promise.tpot
        low, high = (rate, high) if fits else (low, rate)
    return low


def _clairvoyant(
    profile: Profile,
    trace: Trace,
    promise: Promise,
    least: int,
    most: int,
    factor: float,
    over: Callable[[list[float]], float],
) -> Scaler:
    requests = trace.requests()
    one = most_rate(
        profile,
        statistics.fmean(each.prompt for each in requests),
        statistics.fmean(each.completion for each in requests),
        percentile(sorted(each.prompt for each in requests), promise.share) or 0.0,
        promise,
    )
    looks = range(int((profile.start + 2 * INTERVAL) / _PART) + 1)

    def scale(load: Load, engines: int) -> int:
        rate = over([trace.rate(min(load.at + each * _PART, trace.seconds)) for each in looks])
        return min(most, max(least, math.ceil(factor * rate / one)))

    return scale
