"""Ours, and others' as they are published.

Others are told what an engine can do, as whoever deploys them has to find out beforehand; ours has to learn it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Final

from benchmarks.scaling.engine import Profile
from benchmarks.scaling.oracle import most_rate
from benchmarks.scaling.world import Promise, Scaler
from blade_operator.scaling.decide import decide
from blade_operator.scaling.load import Load
from blade_operator.scaling.memory import Memory
from blade_operator.scaling.policy import Policy, Targets

NEVER: Final = -math.inf


def slo(profile: Profile, promise: Promise, least: int, most: int) -> Scaler:
    """The operator's own code. It knows how long engines take to start, as it sees them do, and nothing else."""
    targets = Targets(promise.ttft, promise.tpot, promise.share)
    return ours(Policy(least, most, targets=targets), profile)


def concurrency(profile: Profile, target: float, least: int, most: int) -> Scaler:
    """The operator's own code with a number of requests for each engine."""
    return ours(Policy(least, most, concurrency=target), profile)


def ours(policy: Policy, profile: Profile) -> Scaler:
    """The operator's decisions, with what it remembers from one to the next."""
    memory = replace(Memory(), start_seconds=profile.start)

    def scale(load: Load, engines: int) -> int:
        nonlocal memory
        decision, memory = decide(policy, engines, load, memory)
        return decision.engines

    return scale


def hpa(target: float, least: int, most: int, down_window: float = 300.0) -> Scaler:
    """KEDA's and the HorizontalPodAutoscaler's (autoscaling/v2, defaults): ceil(engines x metric / target) of the
    mean of requests in flight, nothing within 10 %, engines that start count as idle before there are more, downwards
    the most of the last five minutes, upwards the larger of twice as many and four more in 15 s."""
    recent: deque[tuple[float, int]] = deque()

    def scale(load: Load, engines: int) -> int:
        ready = max(1, load.ready)
        ratio = load.present / ready / target
        wanted = engines if abs(ratio - 1) <= 0.1 else math.ceil(ready * ratio - 1e-9)
        if ratio > 1 and load.starting:
            again = load.present / (ready + load.starting) / target
            wanted = engines if again <= 1.1 else math.ceil((ready + load.starting) * again)
        wanted = min(most, max(least, wanted))
        while recent and load.at - recent[0][0] > down_window:
            recent.popleft()
        recent.append((load.at, wanted))
        wanted = max(wanted, min(engines, max(count for _, count in recent)))
        return min(wanted, max(2 * engines, engines + 4))

    return scale


def knative(target: float, least: int, most: int) -> Scaler:
    """Knative's KPA, which is KServe's, too, with its defaults: the mean concurrency of a minute over 70 % of the
    target; when that of the last six seconds (here at this moment) asks for twice the engines that are ready, that
    one, and nothing downwards until a minute after."""
    minute: deque[tuple[float, float]] = deque()
    panic_at, panic_most = NEVER, 0

    def scale(load: Load, engines: int) -> int:
        nonlocal panic_at, panic_most
        minute.append((load.at, load.present))
        while load.at - minute[0][0] > 60.0:
            minute.popleft()
        mean = sum(each for _, each in minute) / len(minute)
        stable = math.ceil(mean / (0.7 * target) - 1e-9)
        now = math.ceil(load.present / (0.7 * target) - 1e-9)
        if now >= 2 * max(1, load.ready):
            panic_at = load.at
        if load.at - panic_at <= 60.0:
            panic_most = max(panic_most, now, stable)
            wanted = max(panic_most, engines)
        else:
            panic_most, wanted = 0, stable
        return min(most, max(least, wanted))

    return scale


def llm_d(promise: Promise, least: int, most: int) -> Scaler:
    """llm-d's guide for latency targets with KEDA: the larger of TTFT and TPOT over their targets, at most 2, as a
    mean of 45 s; up above 0.55, credit for engines that start, by the larger of as many again and four in a minute;
    down below 0.40, one in two minutes."""
    recent: deque[tuple[float, float]] = deque()
    raised, lowered = NEVER, NEVER

    def scale(load: Load, engines: int) -> int:
        nonlocal raised, lowered
        score = min(2.0, max((load.ttft or 0.0) / promise.ttft, (load.tpot or 0.0) / promise.tpot))
        recent.append((load.at, score))
        while load.at - recent[0][0] > 45.0:
            recent.popleft()
        mean = sum(each for _, each in recent) / len(recent)
        credit = load.ready / max(1, load.ready + load.starting)
        wanted = engines
        if mean * credit > 0.55 and load.at - raised >= 60.0:
            wanted = min(math.ceil(engines * mean * credit / 0.55), engines + max(4, engines))
            raised = load.at
        elif mean < 0.40 and load.at - lowered >= 120.0:
            wanted = engines - 1
            lowered = load.at
        return min(most, max(least, wanted))

    return scale


def planner(
    profile: Profile,
    lengths: tuple[float, float, float],
    promise: Promise,
    least: int,
    most: int,
    interval: float = 60.0,
) -> Scaler:
    """Dynamo's SLA planner, for engines that compute prompts and responses: at each interval (its default is 180 s;
    here 60 s, which suits it better) the arrivals of the next one, by the line through the last two as its ARIMA does
    with as little, times measured over profiled latency, over what an engine was profiled to do within the targets.
    ``lengths``: mean prompt, mean response, long prompt, in tokens."""
    history: deque[float] = deque(maxlen=2)
    at, correction = NEVER, 1.0
    prompt, completion, long_prompt = lengths
    rate = most_rate(profile, prompt, completion, long_prompt, promise)

    def scale(load: Load, engines: int) -> int:
        nonlocal at, correction
        if load.at - at < interval:
            return engines
        at = load.at
        history.append(load.arrivals)
        expected = max(0.0, 2 * history[-1] - history[0])
        ratios = [(load.ttft or 0.0) / promise.ttft, (load.tpot or 0.0) / promise.tpot]
        correction = min(2.0, max(1.0, *ratios))
        return min(most, max(least, math.ceil(expected * correction / rate)))

    return scale
