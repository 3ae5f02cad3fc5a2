"""What an autoscaler remembers, as text and back."""

from __future__ import annotations

import dataclasses
import json

import pytest

from blade_operator.scaling import serialise
from blade_operator.scaling.decide import decide
from blade_operator.scaling.load import Load
from blade_operator.scaling.memory import Memory
from blade_operator.scaling.policy import Policy, Targets
from blade_operator.scaling.serialise import LONGEST, Saved

NOW = 1_764_381_600.0
POLICY = Policy(least=1, most=64, targets=Targets(0.5, 0.04))


def load(step: int) -> Load:
    return Load(
        at=NOW + 10 * step,
        ready=4,
        running=8.0 + step % 7,
        arrivals=3.0 + step % 5 / 3,
        prompt_tokens=1000.0 + step,
        completion_tokens=300.0 + step % 11,
        ttft=0.3,
        tpot=0.03 + step % 3 / 1000,
        mean_tpot=0.02 + step % 3 / 1000,
    )


def learnt(steps: int) -> Memory:
    memory, engines = Memory(), 4
    for step in range(steps):
        decision, memory = decide(POLICY, engines, load(step), memory)
        engines = decision.engines
    return memory


def test_what_comes_back_decides_the_same() -> None:
    memory = learnt(200)
    text = serialise.dump(Saved(NOW, memory, 3))
    assert len(text) < 1500
    back = serialise.load(text)
    assert back is not None
    assert (back.at, back.replicas) == (NOW, 3)
    [(one, _), (other, _)] = (decide(POLICY, 4, load(201), each) for each in (memory, back.memory))
    assert (one.engines, one.needed) == (other.engines, other.needed)
    assert back.memory.peaks.peaks == tuple((round(at), count) for at, count in memory.peaks.peaks)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"memory": 3}', '{"memory": {"peaks": {"peaks": [["x", 1]]}}}']
)
def test_what_is_of_another_kind_is_forgotten(text: str) -> None:
    assert serialise.load(text) is None


def test_fields_of_another_release_do_no_harm() -> None:
    data = json.loads(serialise.dump(Saved(NOW, learnt(20))))
    data["memory"]["new"] = 1
    del data["memory"]["start_seconds"]
    found = serialise.load(json.dumps(data))
    assert found is not None
    assert found.memory.start_seconds == Memory().start_seconds


def test_what_would_be_too_long_is_not_kept() -> None:
    long = dataclasses.replace(learnt(1).peaks, peaks=tuple((NOW + n, n) for n in range(LONGEST)))
    assert serialise.dump(Saved(NOW, dataclasses.replace(Memory(), peaks=long))) == ""
