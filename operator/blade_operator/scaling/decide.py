"""The decision: how many engines there are to be now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from blade_operator.scaling.headroom import AIM
from blade_operator.scaling.load import Load
from blade_operator.scaling.memory import Memory
from blade_operator.scaling.need import Need, by_concurrency, by_targets, late, reachable
from blade_operator.scaling.policy import Policy

LONGEST: Final = 180.0
"""Seconds between two decisions after which what was needed in between is unknown."""
FURTHER: Final = 0.25
"""Share of the delay after which one more goes, if the last change was to fewer, too: that reverses nothing."""
REACTION: Final = 15.0
"""Seconds from a change of the load to the decision that sees it: the next one, and half of one more, because what is
decided by is a mean of the time before."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Engines, and the numbers that led to them."""

    engines: int
    reason: str
    needed: int
    """Before delays and speeds."""


def decide(policy: Policy, engines: int, load: Load, memory: Memory) -> tuple[Decision, Memory]:
    """For ``engines`` that there are to be so far: as many as are needed, at once; fewer once that has been enough for
    a while. What is to be remembered comes with it. A load whose numbers are not sound changes neither."""
    if not load.is_sound:
        kept = min(max(engines, policy.least), policy.most)
        return Decision(kept, "the load's numbers are not sound", kept), memory
    memory = _learn(policy, load, _in_time(load.at, memory))
    need = _need(policy, load, memory)
    bounded = min(max(need.engines, policy.least), policy.most)
    memory = replace(memory, peaks=memory.peaks.with_need(load.at, bounded, policy.down_delay))
    decided, reason = bounded, need.reason
    if bounded < engines:
        decided = _fewer(policy, engines, bounded, load, memory)
        if decided == engines:
            reason = f"{need.reason}; {bounded} would do, but not for {policy.down_delay:g} s yet"
    elif bounded > engines:
        before = memory.changes.lowest(load.at, policy.up.seconds, engines)
        decided = min(bounded, max(engines, before + policy.up.step(before)))
    decided = min(max(decided, policy.least), policy.most)
    if decided != engines:
        window = max(policy.up.seconds, policy.down.seconds)
        changes = memory.changes.with_change(load.at, engines, window)
        memory = replace(memory, changes=changes, falling=decided < engines)
    return Decision(decided, reason, bounded), memory


def _in_time(at: float, memory: Memory) -> Memory:
    """Without what it knows of a time that is not just before ``at``: a clock was set, or nobody decided for long. Then
    nothing says what was needed meanwhile, and waiting begins anew."""
    if not memory.at or 0.0 <= at - memory.at <= LONGEST:
        return replace(memory, at=at)
    return replace(memory.without_lately(at), at=at, headroom=replace(memory.headroom, at=at))


def _learn(policy: Policy, load: Load, memory: Memory) -> Memory:
    busy = load.present or load.arrivals or not memory.busy_at
    memory = replace(memory, busy_at=load.at if busy else memory.busy_at)
    if policy.concurrency is not None:
        return replace(memory, present=memory.present.with_rate(load.at, load.present))
    if load.recent_arrivals is None:
        arrivals = memory.arrivals.with_rate(load.at, load.arrivals)
    else:
        arrivals = memory.arrivals.with_rate(load.at, load.recent_arrivals, load.at - memory.arrivals.at)
    memory = replace(memory, steady=memory.steady.with_load(load, arrivals.level))
    capacity = memory.capacity
    if not capacity.is_known or memory.steady.lasts(load.at):
        capacity = capacity.learn(load)
    allowed = 1.0 - policy.targets.share
    headroom = memory.headroom.with_rate(load.at, load.arrivals)
    share = late(load, reachable(policy.targets, capacity)) if capacity.is_known else None
    if share is not None:
        steady = memory.steady.lasts(load.at)
        headroom = headroom.with_late(load.at, share, allowed, steady=steady)
    lead = memory.start_seconds + REACTION
    # Latencies are of what engines got in about the last half minute.
    lately = (load.arrivals + arrivals.level) / 2
    floor = memory.floor.with_rate(load.at, lately, headroom.most, lead, allowed)
    floor = floor.with_plan(load.at, arrivals.ahead(lead), lead, lead + policy.down_delay)
    lengths = memory.lengths.with_load(load)
    return replace(memory, capacity=capacity, arrivals=arrivals, headroom=headroom, floor=floor, lengths=lengths)


def _need(policy: Policy, load: Load, memory: Memory) -> Need:
    idle = load.at - memory.busy_at if load.idle is None else load.idle
    if not load.engines and not load.present:
        return Need(0, "no request waits")
    if policy.idle_to_zero is not None and idle >= policy.idle_to_zero:
        return Need(0, f"no request for {idle:.0f} s")
    if policy.concurrency is not None:
        need = by_concurrency(load, memory.present.ahead(memory.start_seconds), policy.concurrency)
    else:
        floor = memory.floor.rate(AIM * (1.0 - policy.targets.share))
        arrivals = memory.headroom.planned(memory.arrivals.ahead(memory.start_seconds + REACTION), floor)
        need = by_targets(memory.lengths.of(load), arrivals, memory.capacity, policy, memory.start_seconds)
    return Need(max(1, need.engines), need.reason)


def _fewer(policy: Policy, engines: int, needed: int, load: Load, memory: Memory) -> int:
    if not needed:  # nobody is there: nothing to be careful about
        return 0
    if load.starting:  # what they will change is not seen yet
        return engines
    delay = policy.down_delay * (FURTHER if memory.falling else 1.0)
    enough = max(needed, memory.peaks.most(load.at, delay, engines))
    before = memory.changes.highest(load.at, policy.down.seconds, engines)
    return min(engines, max(enough, before - policy.down.step(before)))
