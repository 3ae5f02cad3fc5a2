"""Perf gate: what the host does in a step, counted and not timed, so that a busy machine cannot fail it.

Calls (of Python and C functions) and executed lines of one turn of the engine process's loop, in steady decode, at two
batch sizes: the difference shows what a slot costs, the rest what a step costs. ``benchmarks/engine/host_step.py`` has
the milliseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

import pytest
from benchmarks.engine.host_step import Serving, Stopwatch

from blade_llm.engine import process

SMALL, LARGE = 128, 256
TURNS = 32
"""Two blocks' worth: every slot takes a block and names one twice."""

BOUNDS = {
    "core: calls per slot": 19,
    "core: calls per step": 120,
    "core: lines per slot": 65,
    "core: lines per step": 235,
    "inputs: calls per slot": 0.2,
    "inputs: calls per step": 97,
    "inputs: lines per slot": 5,
    "inputs: lines per step": 218,
}
"""About 15 % above what was counted, on Python 3.11."""

ADVICE = (
    "A step does more host work than before: {name} is {counted:.1f}, bound {bound:.1f}. Find it with cProfile on "
    "`QUICK=1 python -m benchmarks.engine.host_step` and move it out of the loop over slots, or, if it is needed and "
    "the benchmark still stays under its targets, raise the bound in this file."
)

T = TypeVar("T")


class Counter(Stopwatch):
    """Counts events in place of seconds: those while inputs are built as theirs, all others as the core's."""

    def __init__(self) -> None:
        super().__init__()
        self._part = "core"
        self.counts: dict[str, int] = {}

    def timed(self, name: str, function: Callable[..., T]) -> Callable[..., T]:
        if name != "inputs":
            return function

        def wrapper(*arguments: Any) -> T:
            self._part = "inputs"
            try:
                return function(*arguments)
            finally:
                self._part = "core"

        return wrapper

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self._add("calls")

    def trace(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event == "line":
            self._add("lines")
        return self.trace

    def _add(self, what: str) -> None:
        key = f"{self._part}: {what}"
        self.counts[key] = self.counts.get(key, 0) + 1


def count(batch: int) -> dict[str, float]:
    """Events of one turn, the mean of many."""
    counter = Counter()
    serving = Serving(batch, TURNS + 2, counter, context=64)
    try:
        for _ in range(TURNS):
            sys.setprofile(counter.profile)
            sys.settrace(counter.trace)
            serving.turn()
            sys.settrace(None)
            sys.setprofile(None)
            serving.drain()
        assert serving.core.scheduler.stats().running == batch
    finally:
        serving.close()
    return {key: value / TURNS for key, value in counter.counts.items()}


@pytest.fixture(scope="module")
def counted() -> dict[str, float]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "STATE_INTERVAL_S", 0.0)  # published in every turn, however long it takes
        small, large = count(SMALL), count(LARGE)
    costs = {}
    for key in large:
        per_slot = (large[key] - small[key]) / (LARGE - SMALL)
        costs[f"{key} per slot"] = per_slot
        costs[f"{key} per step"] = small[key] - SMALL * per_slot
    return costs


@pytest.mark.parametrize("name", BOUNDS)
def test_a_step_does_no_more_host_work_than_it_did(counted: dict[str, float], name: str) -> None:
    assert counted[name] <= BOUNDS[name], ADVICE.format(name=name, counted=counted[name], bound=BOUNDS[name])
