"""What front processes share, and the metrics made of it."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from blade_llm.api.answers import Answers, Choice
from blade_llm.api.board import Board
from blade_llm.api.metrics import NUM_COUNTERS, ServerMetrics
from blade_llm.api.server import _drain
from blade_protocol import metrics as names


def _samples(text: bytes, name: str) -> dict[str, float]:
    rows = (line.rpartition(" ") for line in text.decode().splitlines() if line.startswith(name))
    return {key: float(value) for key, _, value in rows if "_created" not in key}


def test_what_one_writes_the_others_read() -> None:
    ours = Board(3, 2)
    theirs = Board(3, 2, ours.descriptor)
    theirs.vitals[1][0] = 4
    theirs.vitals[2][0] = 3
    theirs.counters[2][1] = 0.5
    assert ours.num_open == 7
    assert [list(row) for row in ours.counters] == [[0, 0], [0, 0], [0, 0.5]]


def test_a_drain_is_for_all_and_that_before_the_end_is_final() -> None:
    ours = Board(2, 0)
    theirs = Board(2, 0, ours.descriptor)
    seen = []
    for value in (True, False):
        ours.set_draining(value)
        seen.append(theirs.draining)
    ours.end()
    theirs.set_draining(False)
    assert [*seen, theirs.draining, ours.draining] == [True, False, True, True]


def test_one_front_with_work_and_without_progress_is_enough_to_be_stalled() -> None:
    board = Board(2, 0)
    assert not board.stalled(1), "without work nothing is wrong"
    now = time.monotonic()
    board.vitals[0][0], board.vitals[0][1] = 1, now
    board.vitals[1][0], board.vitals[1][1] = 0, now - 100
    assert not board.stalled(50)
    board.vitals[1][0] = 1
    assert board.stalled(50)


async def test_a_drain_waits_for_what_another_front_took_in_as_it_began() -> None:
    board = Board(2, 0)
    context: Any = SimpleNamespace(board=board, set_draining=board.set_draining)
    watch: Any = SimpleNamespace(ended=asyncio.Event())
    drain = asyncio.ensure_future(_drain(context, watch, 30))
    for _ in range(5):
        await asyncio.sleep(0)
    assert board.draining
    board.vitals[1][0] = 1  # it had looked just before
    await asyncio.sleep(0.1)
    assert not drain.done()
    board.vitals[1][0] = 0
    await drain


@given(rows=st.lists(st.lists(st.floats(0.0, 100.0)), min_size=1, max_size=3))
def test_histograms_of_all_fronts_are_as_if_one_had_measured(rows: list[list[float]]) -> None:
    board = Board(len(rows), NUM_COUNTERS)
    fronts = [ServerMetrics(lambda: None, counters, board.counters) for counters in board.counters]
    registry = CollectorRegistry()
    buckets = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
    one = Histogram(names.ENGINE_TTFT, "of one", buckets=buckets, registry=registry)
    for front, row in zip(fronts, rows, strict=True):
        for seconds in row:
            choice = Choice.__new__(Choice)
            choice.first_token_at, choice.last_token_at, choice.num_tokens, choice.finish_reason = seconds, 0, 1, "stop"
            choice.num_replayed = 0
            front.observe(Answers(None, [choice], 0, started=0.0))  # type: ignore[arg-type]
            one.observe(seconds)
    expected = _samples(generate_latest(registry), names.ENGINE_TTFT)
    found = [_samples(front.render(), names.ENGINE_TTFT) for front in fronts]
    for samples in found:
        total = f"{names.ENGINE_TTFT}_sum"
        assert abs(samples.pop(total) - expected[total]) < 1e-6 * max(expected[total], 1)
        assert samples == {name: value for name, value in expected.items() if name != total}
    finished = names.ENGINE_REQUESTS + '_total{finished_reason="stop"}'
    assert _samples(fronts[0].render(), finished)[finished] == sum(map(len, rows))
