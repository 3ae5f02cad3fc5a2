"""What users feel, in simulated fleets: figures that a change of the scores must not make worse.

A few cells of ``make bench-routing``; the same prompts and engines for each policy, and the same each time.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from benchmarks.routing.cell import NAMED, Cell
from benchmarks.routing.simulation import Result

SEEDS = range(3)
CELLS = {cell.name: cell for cell in NAMED}
PLAIN = Cell(4, 4.0, 0.0, 48, "dear", "shared", "exact", False, 1, False, False)


def average(cell: Cell, name: str, seeds: Sequence[int] = SEEDS) -> Result:
    runs = [cell.run([name], seed)[name] for seed in seeds]
    return Result(
        goodput=statistics.fmean(run.goodput for run in runs),
        p50=statistics.median(run.p50 for run in runs),
        p99=statistics.median(run.p99 for run in runs),
        hit_rate=statistics.fmean(run.hit_rate for run in runs),
        imbalance=statistics.fmean(run.imbalance for run in runs),
    )


def test_one_at_a_time_nothing_moves() -> None:
    assert average(CELLS["one at a time"], "auto").hit_rate >= 0.74


@pytest.mark.parametrize("name", ["48 at once", "48 at once, foreign tokens"])
def test_warm_stays_warm_under_load(name: str) -> None:
    ours, sglang = average(CELLS[name], "auto"), average(CELLS[name], "sglang")
    assert ours.hit_rate >= 0.955
    assert ours.goodput >= 0.97 * sglang.goodput
    assert ours.p99 <= 1.1 * sglang.p99


def test_routers_that_share_nothing_share_homes() -> None:
    cell = CELLS["48 at once, 3 routers"]
    assert average(cell, "auto, no sync").goodput >= 1.5 * average(cell, "sglang").goodput


def test_routers_in_sync_are_almost_one() -> None:
    cell = replace(PLAIN, engines=2, prompts="turns", clients=8, routers=3)
    together, apart = average(cell, "auto", [0]), average(cell, "auto, no sync", [0])
    one = average(replace(cell, routers=1), "auto", [0])
    assert together.goodput >= max(0.95 * one.goodput, 1.05 * apart.goodput)


@pytest.mark.parametrize("reported", ["exact", "absent", "zero", "cumulative", "foreign"])
def test_it_learns_from_anything(reported: str) -> None:
    cell = replace(PLAIN, reported=reported)
    ours, oracle = average(cell, "auto", [0]), average(cell, "oracle", [0])
    assert ours.goodput >= 0.9 * oracle.goodput


def test_a_popular_prompt_gets_more_homes_than_one() -> None:
    cell = replace(PLAIN, engines=16, cache=1.0, skew=1.4, slow=True)
    assert average(cell, "auto", [0]).goodput >= 1.3 * average(cell, "sglang", [0]).goodput


def test_conversations_stay() -> None:
    cell = replace(PLAIN, prompts="turns", prefill="cheap")
    ours, sglang = average(cell, "auto", [0]), average(cell, "sglang", [0])
    assert ours.hit_rate >= 0.98 * sglang.hit_rate


def test_a_slow_engine_gets_less() -> None:
    cell = replace(PLAIN, prompts="none", slow=True)
    ours, least = average(cell, "auto", [0]), average(cell, "least-request", [0])
    assert ours.p99 <= least.p99
