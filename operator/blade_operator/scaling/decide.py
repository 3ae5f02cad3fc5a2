"""The decision: how many engines there are to be now."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blade_operator.scaling.load import Load
from blade_operator.scaling.memory import Memory
from blade_operator.scaling.need import Need, by_concurrency, by_targets
from blade_operator.scaling.policy import Policy


@dataclass(frozen=True, slots=True)
class Decision:
    """Engines, and the numbers that led to them."""

    engines: int
    reason: str
    needed: int
    """Before delays and speeds."""


def decide(policy: Policy, engines: int, load: Load, memory: Memory) -> tuple[Decision, Memory]:
    """For ``engines`` that there are to be so far: as many as are needed, at once; fewer once that has been enough for
    a while. What is to be remembered comes with it."""
    memory = _learn(policy, load, memory)
    need = _need(policy, load, memory)
    bounded = min(max(need.engines, policy.least), policy.most)
    memory = replace(memory, peaks=memory.peaks.with_need(load.at, bounded, policy.down_delay))
    decided, reason = bounded, need.reason
    if bounded < engines:
        decided, reason = _fewer(policy, engines, bounded, load, memory), need.reason
        if decided == engines:
            reason = f"{need.reason}; {bounded} would do, but not for {policy.down_delay:g} s yet"
    elif bounded > engines:
        before = memory.changes.lowest(load.at, policy.up.seconds, engines)
        decided = min(bounded, max(engines, before + policy.up.step(before)))
    decided = min(max(decided, policy.least), policy.most)
    if decided != engines:
        window = max(policy.up.seconds, policy.down.seconds)
        memory = replace(memory, changes=memory.changes.with_change(load.at, engines, window))
    return Decision(decided, reason, bounded), memory


def _learn(policy: Policy, load: Load, memory: Memory) -> Memory:
    return replace(
        memory,
        capacity=memory.capacity.learn(load) if policy.concurrency is None else memory.capacity,
        arrivals=memory.arrivals.with_rate(load.at, load.arrivals),
        present=memory.present.with_rate(load.at, load.present),
        busy_at=load.at if load.present or load.arrivals or not memory.busy_at else memory.busy_at,
    )


def _need(policy: Policy, load: Load, memory: Memory) -> Need:
    idle = load.at - memory.busy_at if load.idle is None else load.idle
    if not load.engines and not load.present:
        return Need(0, "no request waits")
    if policy.idle_to_zero is not None and idle >= policy.idle_to_zero:
        return Need(0, f"no request for {idle:.0f} s")
    if policy.concurrency is not None:
        need = by_concurrency(load, memory.present.ahead(memory.start_seconds, load.present), policy.concurrency)
    else:
        arrivals = memory.arrivals.ahead(memory.start_seconds, load.arrivals)
        need = by_targets(load, arrivals, memory.capacity, policy, memory.start_seconds)
    return Need(max(1, need.engines), need.reason)


def _fewer(policy: Policy, engines: int, needed: int, load: Load, memory: Memory) -> int:
    if load.starting:  # what they will change is not seen yet
        return engines
    enough = max(needed, memory.peaks.most(load.at, policy.down_delay, engines))
    if not needed:  # nobody is there: nothing to be careful about
        return 0
    before = memory.changes.highest(load.at, policy.down.seconds, engines)
    return min(engines, max(enough, before - policy.down.step(before)))
