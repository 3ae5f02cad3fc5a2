"""The simulation of routing policies: it is the same each time, and the design covers what it says."""

import itertools

import pytest
from benchmarks.routing.cell import FACTORS, NAMED, SEQUENTIAL
from benchmarks.routing.design import covering, grid
from benchmarks.routing.engine import Engine


def test_an_engine_computes_in_turn_and_evicts_ends_first() -> None:
    engine = Engine(cache_blocks=4, block_seconds=0.5)
    assert engine.serve([1, 2, 3], 3.0, 1.0, now=0.0) == (0, 1.5, 2.5)
    assert engine.serve([1, 2, 3], 3.5, 1.0, now=0.0) == (3, 1.75, 2.75)
    engine.serve([7, 8], 2.0, 1.0, now=9.0)
    assert engine.hit([1, 2, 3]) == 2
    assert engine.hit([7, 8]) == 2


def test_slots_make_requests_wait() -> None:
    engine = Engine(cache_blocks=4, block_seconds=0.5, slots=1)
    engine.serve([1], 1.0, 1.0, now=0.0)
    assert engine.serve([1], 1.0, 1.0, now=0.0) == (1, 1.5, 2.5)


@pytest.mark.parametrize("strength", [2, 3])
def test_the_design_covers_all_combinations(strength: int) -> None:
    cells = covering(strength)
    assert cells == covering(strength)
    for names in itertools.combinations(FACTORS, strength):
        seen = {tuple(getattr(cell, name) for name in names) for cell in cells}
        assert seen == set(itertools.product(*(FACTORS[name] for name in names)))


def test_shards_are_parts_of_the_grid() -> None:
    some = list(grid(0, 100_000)) + list(grid(50_000, 100_000))
    assert len(set(some)) == len(some) >= 2


def test_a_cell_always_ends_the_same() -> None:
    (cell,) = [cell for cell in NAMED if cell.name == SEQUENTIAL]
    first = cell.run(["auto", "oracle", "llm-d"])
    assert first == cell.run(["auto", "oracle", "llm-d"])
    assert first["oracle"].hit_rate > 0.7


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_no_corner_of_the_full_grid_is_bad(part: int) -> None:
    """A sample of the full grid: goodput beside the best of two others, whatever comes together."""
    for cell in grid(part * 997, 20_011):
        runs = cell.run(["auto", "lmetric", "least-request"])
        assert runs["auto"].goodput >= 0.5 * max(run.goodput for run in runs.values()), cell
