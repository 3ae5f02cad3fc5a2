"""The simulation of placement: it is the same each time, and says what each rule must come to."""

from __future__ import annotations

import dataclasses

import pytest
from benchmarks.adapters.__main__ import results
from benchmarks.adapters.rules import RULES, Rule
from benchmarks.adapters.simulation import Simulation, World

SMALL = World(adapters=40, engines=4, room=30, seconds=200, requests=5, lifetime=100.0, outage=20.0)
BY_NAME = {rule.name: rule for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_run_always_ends_the_same(rule: Rule) -> None:
    first, second = (Simulation(SMALL, rule, 7).run() for _ in range(2))
    assert first == second
    assert first.requests == SMALL.seconds * SMALL.requests
    assert first.hits + first.homeless <= first.requests
    assert first.first_loads == SMALL.adapters * (rule.copies or SMALL.engines)


def test_without_outages_what_fits_is_always_hit_and_what_does_not_is_read_again() -> None:
    calm = dataclasses.replace(SMALL, lifetime=1e9)
    ours = Simulation(calm, BY_NAME["bladellm_k2"], 1).run()
    assert (ours.hit_rate, ours.loads, ours.lost, ours.homeless) == (1.0, 0, 0, 0)
    everywhere = Simulation(calm, BY_NAME["kubeai_all"], 1).run()
    assert everywhere.hit_rate < 1.0
    assert everywhere.loads == everywhere.requests - everywhere.hits


def test_ours_loads_what_engines_lost_and_little_else() -> None:
    world = dataclasses.replace(SMALL, adapters=100, engines=12, lifetime=600.0)
    for name in ("bladellm_k2", "bladellm_k1"):
        result = Simulation(world, BY_NAME[name], 3).run()
        assert result.lost
        assert result.loads <= 1.1 * result.lost


def test_each_figure_that_must_hold_has_a_target() -> None:
    runs = {rule.name: [Simulation(SMALL, rule, 5).run()] for rule in RULES}
    targets = {figure.name for figure in results(runs) if figure.relation}
    assert targets == {
        "bladellm_k2_hit_rate", "bladellm_k2_movement", "bladellm_k1_movement", "bladellm_k1_loads",
    }  # fmt: skip
    assert {figure.name for figure in results(runs, "short_") if figure.relation} == {"short_bladellm_k2_hit_rate"}
