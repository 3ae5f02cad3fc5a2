"""How many engines a load needs, before bounds, delays and speeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from blade_operator.scaling.capacity import Capacity, Demand
from blade_operator.scaling.load import Load
from blade_operator.scaling.policy import Policy, Targets

MARGIN: Final = 0.85
"""Share of a target that is planned with: percentiles of a minute vary."""
SPARE: Final = 0.9
"""Share of the same with which one engine fewer has to do: else it would soon be needed again."""
_MOST_FACTOR: Final = 2.0
"""The most by which a target that is missed multiplies the engines at once."""
_HIGH: Final = 0.9
"""A latency above this share of its target asks for more, while nothing is known of what an engine can do."""


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
    what an engine can do, more as far as a target is missed. What waits has to be done in ``start`` seconds, too."""
    if capacity.is_known:
        need = _planned(load, arrivals + load.queued / start, capacity, policy)
    else:
        need = Need(load.engines, "it is not known yet what an engine can do")
    measured = _measured(load, policy.targets)
    if measured is not None and measured.engines > need.engines:
        return measured
    return need


def _planned(load: Load, arrivals: float, capacity: Capacity, policy: Policy) -> Need:
    for engines in range(max(1, policy.least), policy.most + 1):
        expected = capacity.predict(Demand.of(load, engines, arrivals))
        margin = MARGIN if engines >= load.engines else MARGIN * SPARE
        if _within(policy.targets.ttft, expected.ttft, margin) and _within(policy.targets.tpot, expected.tpot, margin):
            text = f"{arrivals:.2g} requests/s: TTFT {_ms(expected.ttft)}, TPOT {_ms(expected.tpot)} expected"
            return Need(engines, text)
    return Need(policy.most, f"{arrivals:.2g} requests/s are more than {policy.most} engines can do in time")


def _measured(load: Load, targets: Targets) -> Need | None:
    """What latencies ask for that are near their targets or above them, whatever is expected."""
    found: Need | None = None
    for name, measured, target in (("TTFT", load.ttft, targets.ttft), ("TPOT", load.tpot, targets.tpot)):
        if not measured or not target or not math.isfinite(measured) or measured < _HIGH * target:
            continue
        # Engines that start are on their way to mend it.
        engines = max(math.ceil(load.ready * min(_MOST_FACTOR, measured / target / MARGIN)), load.ready + 1)
        if found is None or engines > found.engines:
            found = Need(engines, f"{name} {_ms(measured)} of {_ms(target)}")
    return found


def _within(target: float | None, expected: float, margin: float) -> bool:
    return target is None or expected <= margin * target


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"
