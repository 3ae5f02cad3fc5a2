"""How many engines a load needs, before bounds, delays and speeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from blade_operator.scaling.capacity import Capacity, Demand, Latencies
from blade_operator.scaling.load import Load
from blade_operator.scaling.policy import Policy, Targets

SPARE: Final = 1.03
"""So many times the load is what fewer engines have to be enough for: else one more would soon be needed again."""
BEST: Final = 1.2
"""A target below so many times the latency of an engine without load cannot be reached by more engines."""
_BUSY: Final = 0.9
"""Share of its time that an engine may be busy where no TPOT is promised."""
_MOST_FACTOR: Final = 2.0
"""The most by which a target that is missed multiplies the engines at once."""
_HIGH: Final = 0.9
"""A latency above this share of its target asks for more, while nothing is known of what an engine can do."""
_STEEP: Final = 3.0
"""Power with which the share of late requests grows with their latency over its target."""


@dataclass(frozen=True, slots=True)
class Need:
    """Engines, and why."""

    engines: int
    reason: str


def by_concurrency(load: Load, expected: float, target: float) -> Need:
    """So that engines have ``target`` requests each. ``expected``: requests that there will be."""
    present = max(load.present, expected)
    engines = math.ceil(present / target - 1e-9)
    return Need(engines, f"{load.running:.0f} requests at engines and {load.queued:.0f} waiting, {target:g} an engine")


def by_targets(load: Load, arrivals: float, capacity: Capacity, policy: Policy, start: float) -> Need:
    """The fewest engines with which latencies stay below the targets at ``arrivals`` a second; while it is not known
    what an engine can do, more as far as a target is missed. What waits, or is more than engines can have at a time,
    has to be done in ``start`` seconds, too: requests pile up before their latencies say so."""
    if not capacity.is_known or load.arrivals <= 0.0:
        return _measured(load, policy.targets) or Need(load.engines, "it is not known yet what an engine can do")
    targets = reachable(policy.targets, capacity)
    piled_up = load.present - _present_in_time(load, targets, capacity)
    arrivals += max(load.queued, piled_up) / max(start, 1.0)
    low, high = max(1, policy.least), max(1, policy.most)
    while low < high:  # latencies fall with the number of engines
        engines = (low + high) // 2
        spare = SPARE if engines < load.engines else 1.0
        if _within(targets, capacity.predict(Demand.of(load, engines, arrivals * spare))):
            high = engines
        else:
            low = engines + 1
    expected = capacity.predict(Demand.of(load, low, arrivals))
    if not _within(targets, expected):
        return Need(low, f"{arrivals:.3g} requests/s are more than {low} engines can do in time")
    text = f"for {arrivals:.3g} requests/s: TTFT {_ms(expected.ttft)}, TPOT {_ms(expected.tpot)} expected"
    if targets != policy.targets:
        text += "; no number of engines is fast enough for the targets"
    return Need(low, text)


def _present_in_time(load: Load, targets: Targets, capacity: Capacity) -> float:
    """Requests that the engines which are ready can have at a time within the targets, by Little's law; infinite where
    what was learnt does not say."""
    demand = Demand.of(load, 1, 1.0)
    of_one = capacity.busy(demand)
    if of_one <= 0.0 or capacity.fixed <= 0.0:
        return math.inf
    busy = _BUSY if targets.tpot is None else 1.0 - capacity.fixed * capacity.tail / targets.tpot
    return load.ready * busy / of_one * demand.completion * capacity.fixed / (1.0 - busy)


def reachable(targets: Targets, capacity: Capacity) -> Targets:
    """``targets``, but none that an engine without load does not reach."""
    best = Latencies(BEST * capacity.ttft, BEST * capacity.fixed * capacity.tail)
    return Targets(
        None if targets.ttft is None else max(targets.ttft, best.ttft),
        None if targets.tpot is None else max(targets.tpot, best.tpot),
        targets.share,
    )


def late(load: Load, targets: Targets) -> float | None:
    """Share of the requests that were not within the targets, at most about; None: nothing was measured."""
    if load.late is not None:
        return load.late
    ratios = [
        measured / target
        for measured, target in ((load.ttft, targets.ttft), (load.tpot, targets.tpot))
        if measured and target
    ]
    return (1.0 - targets.share) * sum(each**_STEEP for each in ratios) if ratios else None


def _measured(load: Load, targets: Targets) -> Need | None:
    """What latencies ask for that are near their targets or above them."""
    found: Need | None = None
    for name, measured, target in (("TTFT", load.ttft, targets.ttft), ("TPOT", load.tpot, targets.tpot)):
        if not measured or not target or measured < _HIGH * target:
            continue
        # Engines that start are on their way to mend it.
        engines = max(math.ceil(load.ready * min(_MOST_FACTOR, measured / target / _HIGH)), load.ready + 1)
        if found is None or engines > found.engines:
            found = Need(engines, f"{name} {_ms(measured)} of {_ms(target)}")
    return found if found is None or found.engines > load.engines else None


def _within(targets: Targets, expected: Latencies) -> bool:
    return (targets.ttft is None or expected.ttft <= targets.ttft) and (
        targets.tpot is None or expected.tpot <= targets.tpot
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
