"""Ours, and others' as they are published."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from benchmarks.scaling.engine import Profile
from benchmarks.scaling.world import Scaler
from blade_operator.scaling.decide import decide
from blade_operator.scaling.load import Load
from blade_operator.scaling.memory import Memory
from blade_operator.scaling.policy import Policy


def ours(policy: Policy, profile: Profile) -> Scaler:
    """The operator's own code. It knows how long engines take to start, as it sees them do."""
    memory = replace(Memory(), start_seconds=profile.start)

    def scale(load: Load, engines: int) -> int:
        nonlocal memory
        decision, memory = decide(policy, engines, load, memory)
        return decision.engines

    return scale


def fixed(count: int) -> Scaler:
    return lambda load, engines: count


def hpa(metric: Callable[[Load], float], target: float, least: int, most: int, down_window: float = 300.0) -> Scaler:
    """KEDA's and the HorizontalPodAutoscaler's: ceil(engines x metric / target) of a mean over ready engines, nothing within
    10 %, downwards the most of the last five minutes, upwards twice or four in 15 s."""
    recent: deque[tuple[float, int]] = deque()

    def scale(load: Load, engines: int) -> int:
        ready = max(1, load.ready)
        ratio = metric(load) / ready / target
        wanted = engines if abs(ratio - 1) <= 0.1 else math.ceil(ready * ratio - 1e-9)
        if ratio > 1 and load.starting:  # engines that are not ready count as idle
            again = metric(load) / (ready + load.starting) / target
            wanted = engines if again <= 1.1 else math.ceil((ready + load.starting) * again)
        wanted = min(most, max(least, wanted))
        while recent and load.at - recent[0][0] > down_window:
            recent.popleft()
        recent.append((load.at, wanted))
        wanted = max(wanted, min(engines, max(count for _, count in recent)))
        return min(wanted, max(2 * engines, engines + 4))

    return scale


def knative(target: float, least: int, most: int) -> Scaler:
    """Knative's and KServe's: the mean concurrency of a minute over a target that is used to 70 %; with twice as much in the
    last six seconds (here at this moment) that one, and nothing downwards for a minute."""
    minute: deque[tuple[float, float]] = deque()
    panic = [-math.inf, 0.0]

    def scale(load: Load, engines: int) -> int:
        minute.append((load.at, load.present))
        while load.at - minute[0][0] > 60.0:
            minute.popleft()
        mean = sum(each for _, each in minute) / len(minute)
        stable = math.ceil(mean / (0.7 * target) - 1e-9)
        now = math.ceil(load.present / (0.7 * target) - 1e-9)
        if now >= 2 * max(1, load.ready):
            panic[0] = load.at
        if load.at - panic[0] <= 60.0:
            panic[1] = max(panic[1], now, stable)
            wanted = max(int(panic[1]), engines)
        else:
            panic[1], wanted = 0.0, stable
        return min(most, max(least, wanted))

    return scale


def llm_d(ttft: float, tpot: float, least: int, most: int) -> Scaler:
    """llm-d's guide for targets with KEDA: the larger of P90 TTFT and TPOT over their targets, at most 2, as a mean of 45 s;
    up above 0.55, down below 0.40; four or twice as many in a minute, one fewer in two."""
    recent: deque[tuple[float, float]] = deque()
    changed = [-math.inf, -math.inf]

    def scale(load: Load, engines: int) -> int:
        score = min(2.0, max((load.ttft or 0.0) / ttft, (load.tpot or 0.0) / tpot))
        recent.append((load.at, score))
        while load.at - recent[0][0] > 45.0:
            recent.popleft()
        mean = sum(each for _, each in recent) / len(recent)
        credit = load.ready / max(1, load.ready + load.starting)
        wanted = engines
        if mean * credit > 0.55 and load.at - changed[0] >= 60.0:
            wanted = min(math.ceil(engines * mean * credit / 0.55), engines + max(4, engines))
            changed[0] = load.at
        elif mean < 0.40 and load.at - changed[1] >= 120.0:
            wanted = engines - 1
            changed[1] = load.at
        return min(most, max(least, wanted))

    return scale


def planner(
    profile: Profile, prompt: float, completion: float, ttft: float, tpot: float, least: int, most: int
) -> Scaler:
    """Dynamo's, for engines that do both: every minute, arrivals forecast (here by the last two minutes' line), over what an
    engine was profiled to do within the targets, with corrections by measured over profiled latencies."""
    history: deque[float] = deque(maxlen=2)
    state = {"at": -math.inf, "correction": 1.0}
    alone = profile.fixed + profile.per_token * prompt
    rate = _most_rate(profile, prompt, completion, ttft, tpot)

    def scale(load: Load, engines: int) -> int:
        if load.at - state["at"] < 60.0:
            return engines
        state["at"] = load.at
        history.append(load.arrivals)
        expected = max(0.0, 2 * history[-1] - history[0]) if len(history) == 2 else history[-1]
        if load.ttft:
            state["correction"] = min(2.0, max(1.0, load.ttft / max(ttft, alone)))
        return min(most, max(least, math.ceil(expected * state["correction"] / rate)))

    return scale


def _most_rate(profile: Profile, prompt: float, completion: float, ttft: float, tpot: float) -> float:
    """Requests a second that an engine was profiled to do."""
    low, high = 0.0, 1000.0
    for _ in range(50):
        rate = (low + high) / 2
        busy = rate * (profile.per_token * prompt + profile.per_request * completion)
        fits = busy < 0.95 and profile.fixed / (1 - busy) <= tpot and profile.per_token * prompt / (1 - busy) <= ttft
        low, high = (rate, high) if fits else (low, rate)
    return low
