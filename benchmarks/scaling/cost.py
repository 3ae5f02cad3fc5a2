"""What one decision costs: an operator with 1,000 services makes 100 of them in a second."""

from __future__ import annotations

import time
from dataclasses import replace

from blade_operator.scaling.decide import decide
from blade_operator.scaling.load import Load
from blade_operator.scaling.memory import Memory
from blade_operator.scaling.policy import Policy, Targets

_DECISIONS = 2000


def decision_seconds() -> float:
    """CPU seconds of a decision by latency targets, whose load rises and falls."""
    policy = Policy(1, 64, targets=Targets(2.0, 0.1, 0.95))
    memory, engines = Memory(), 4
    loads = [_load(index) for index in range(_DECISIONS)]
    started = time.process_time()
    for load in loads:
        decision, memory = decide(policy, engines, replace(load, ready=engines), memory)
        engines = decision.engines
    return (time.process_time() - started) / _DECISIONS


def _load(index: int) -> Load:
    rate = 20.0 + 15.0 * abs((index % 200) / 100 - 1)
    return Load(
        at=1.0e9 + 10.0 * index,
        ready=1,
        running=8.0 * rate,
        arrivals=rate,
        recent_arrivals=rate,
        prompt_tokens=1000 * rate,
        completion_tokens=200 * rate,
        ttft=0.4 + rate / 200,
        tpot=0.04 + rate / 2000,
        mean_tpot=0.03 + rate / 2000,
    )
