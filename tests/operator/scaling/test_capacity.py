"""The capacity model: it finds an engine's numbers from loads and latencies, and predicts with them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_operator.scaling.capacity import LEAST_MEASUREMENTS, Capacity, Demand
from blade_operator.scaling.load import Load

FIXED, PER_REQUEST, PER_TOKEN = 0.024, 0.00018, 0.00013


def measured(rate: float, engines: int, prompt: float = 1000.0, completion: float = 200.0) -> Load:
    """As engines with these numbers have it."""
    one = rate / engines
    tpot = FIXED / (1.0 - one * (PER_TOKEN * prompt + PER_REQUEST * completion))
    return Load(
        at=1000.0,
        ready=engines,
        running=rate * completion * tpot,
        arrivals=rate,
        prompt_tokens=rate * prompt,
        completion_tokens=rate * completion,
        ttft=0.4,
        tpot=1.5 * tpot,
        mean_tpot=tpot,
    )


def learnt(prompt_changes: bool = True) -> Capacity:
    generator, capacity = random.Random(2), Capacity()
    for _ in range(200):
        prompt = generator.uniform(300, 3000) if prompt_changes else 1000.0
        capacity = capacity.learn(measured(generator.uniform(2, 6), 3, prompt, generator.uniform(50, 400)))
    return capacity


def test_it_finds_the_numbers_of_an_engine_whose_load_varies() -> None:
    capacity = learnt()
    assert capacity.is_known
    assert capacity.fixed == pytest.approx(FIXED, rel=0.02)
    assert capacity.per_request == pytest.approx(PER_REQUEST, rel=0.1)
    assert capacity.per_token == pytest.approx(PER_TOKEN, rel=0.05)
    assert capacity.tail == pytest.approx(1.5, rel=0.05)


def test_it_predicts_a_load_that_it_has_not_seen() -> None:
    load = measured(9.0, 3)
    assert learnt().predict(Demand.of(load, 3)).tpot == pytest.approx(load.tpot or 0.0, rel=0.1)
    half = Demand.of(load, 6)
    assert half == Demand.of(load, 3, 4.5)


def test_more_than_an_engine_can_do_is_infinitely_late() -> None:
    capacity = learnt()
    demand = Demand(100.0, 1000.0, 200.0)
    assert capacity.busy(demand) > 1.0
    assert capacity.predict(demand).tpot == capacity.predict(demand).ttft == math.inf


def test_few_measurements_are_not_believed() -> None:
    capacity = Capacity()
    for _ in range(LEAST_MEASUREMENTS - 1):
        capacity = capacity.learn(measured(4.0, 3))
    assert not capacity.is_known
    assert capacity.learn(measured(4.0, 3)).is_known


@pytest.mark.parametrize(
    "load",
    [
        Load(1.0, ready=0, running=3.0, mean_tpot=0.1),
        Load(1.0, ready=2, running=0.0, mean_tpot=0.1),
        Load(1.0, ready=2, running=3.0, mean_tpot=None),
        Load(1.0, ready=2, running=3.0, mean_tpot=math.nan),
    ],
)
def test_engines_that_do_not_compute_say_nothing(load: Load) -> None:
    assert Capacity().learn(load) == Capacity()


FLAT = learnt(prompt_changes=False)


@settings(deadline=None)
@given(st.floats(0.1, 50.0), st.floats(1.0, 4.0), st.integers(1, 40))
def test_latencies_grow_with_the_load_and_fall_with_engines(rate: float, more: float, engines: int) -> None:
    load = measured(4.0, 3)
    before = FLAT.predict(Demand.of(load, engines, rate))
    loaded = FLAT.predict(Demand.of(load, engines, more * rate))
    relieved = FLAT.predict(Demand.of(load, engines + 1, rate))
    assert relieved.tpot <= before.tpot <= loaded.tpot
    assert relieved.ttft <= before.ttft <= loaded.ttft
