"""Sums of the last hour: whatever looks there are, and however often routers and the operator restart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_operator.status.usage import WINDOW, Ledger, Look, Mark, add, dump, load, used
from blade_protocol.signals import RouterSignals

START = 1_750_000_000.0


def signals(started: float = START - 100, prompt: int = 0, completion: int = 0, at: float = START) -> RouterSignals:
    return RouterSignals(started=started, time=at, prompt_tokens=prompt, completion_tokens=completion)


def look(at: float, engines: int = 1, **routers: RouterSignals) -> Look:
    return Look(START + at, engines, tuple(routers), routers)


def after(*looks: Look) -> Ledger:
    ledger = None
    for each in looks:
        ledger = add(ledger, each)
        assert load(dump(ledger)) == ledger  # the operator restarts after each
    assert ledger is not None
    return ledger


def test_what_was_counted_before_is_nobodys() -> None:
    ledger = after(look(0, a=signals(prompt=7000, completion=900)), look(60, a=signals(prompt=7100, completion=920)))
    usage = used(ledger)
    assert (usage.prompt, usage.completion, usage.engine_seconds, usage.seconds) == (100, 20, 60.0, 60.0)


def test_a_router_that_restarts_counts_anew() -> None:
    ledger = after(
        look(0, a=signals(completion=900)),
        look(60, a=signals(completion=1000)),
        look(120, a=signals(started=START + 90, completion=30)),
        look(180, a=signals(started=START + 90, completion=50)),
    )
    assert used(ledger).completion == 150


def test_a_router_that_comes_counts_from_its_start_and_an_older_one_from_now() -> None:
    def both(new: int, old: int) -> dict[str, RouterSignals]:
        return {"new": signals(START + 10, completion=new), "old": signals(START - 9, completion=old)}

    ledger = after(look(0, a=signals()), look(60, a=signals(), **both(40, 70)), look(120, a=signals(), **both(45, 71)))
    assert used(ledger).completion == 46


def test_a_silent_router_is_caught_up_and_one_that_is_gone_forgotten() -> None:
    first = after(look(0, a=signals(), b=signals()))
    silent = add(first, Look(START + 60, 1, ("a", "b"), {"a": signals(completion=5)}))
    assert set(silent.routers) == {"a", "b"}
    caught = add(silent, look(120, a=signals(completion=5), b=signals(completion=8)))
    assert used(caught).completion == 13
    gone = add(caught, look(180, a=signals(completion=6)))
    assert set(gone.routers) == {"a"}
    assert used(gone).completion == 14


def test_engines_count_as_long_as_they_were_there() -> None:
    ledger = after(look(0, 2), look(600, 3), look(1200, 0), look(3000, 0))
    assert used(ledger).engine_seconds == 2 * 600 + 3 * 600


def test_only_the_last_hour_counts() -> None:
    ledger = after(look(0, 4), look(WINDOW, 1), look(WINDOW + 1800, 1))
    # Half of the first hour is within the window still.
    assert used(ledger).seconds == WINDOW
    assert used(ledger).engine_seconds == pytest.approx(4 * 1800 + 1800)
    later = add(ledger, look(10 * WINDOW, 1))
    assert used(later).engine_seconds == pytest.approx(WINDOW)


def test_numbers_that_cannot_be_are_left_out() -> None:
    ledger = after(look(0, a=signals()), look(60, a=signals(completion=-5), b=signals(started=math.nan, completion=7)))
    assert used(ledger).tokens == 0


def test_a_clock_that_goes_back_begins_anew() -> None:
    ledger = after(look(1000, 2), look(1100, 2), look(500, 2))
    assert used(ledger).seconds == 0.0
    slightly = after(look(1000, 2), look(1100, 2), look(1095, 2))
    assert used(slightly).seconds == 100.0


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", "[[]]", '[[[1,-1,0,0]],1,{}]', "[[[2,0,0,0],[1,0,0,0]],1,{}]", "[[[1,0,5,0],[2,0,3,0]],1,{}]",
     "[[[1,0,0,0]],-1,{}]", "[" * 2000],
)  # fmt: skip
def test_a_text_that_somebody_wrote_is_nothing(text: str) -> None:
    assert load(text) is None


STEPS = st.lists(
    st.tuples(
        st.floats(0, 4000, allow_nan=False),  # seconds since the look before
        st.integers(0, 64),  # engines
        st.integers(0, 10**9),  # prompt tokens since then
        st.integers(0, 10**9),
        st.booleans(),  # the router restarted
    ),
    min_size=1,
    max_size=40,
)


@given(STEPS)
def test_sums_are_never_more_than_there_was_nor_negative(steps: list[tuple[float, int, int, int, bool]]) -> None:
    ledger = add(None, look(0, 1, a=signals()))
    at, engines, most, started, prompt, completion = 0.0, 1, 0.0, START - 100, 0, 0
    total = [0, 0]
    for seconds, next_engines, prompts, completions, restarts in steps:
        most += engines * seconds
        at, engines = at + seconds, next_engines
        if restarts and seconds > 1:
            started, prompt, completion = START + at - 0.5, 0, 0
        prompt, completion = prompt + prompts, completion + completions
        total = [total[0] + prompts, total[1] + completions]
        ledger = add(load(dump(ledger)), look(at, engines, a=signals(started, prompt, completion)))
        usage = used(ledger)
        assert 0 <= usage.seconds <= WINDOW + 1e-3
        assert -1e-3 <= usage.engine_seconds <= most + 1e-3
        assert usage.engine_seconds <= 64 * usage.seconds + 1e-3
        assert 0 <= usage.prompt <= total[0]
        assert 0 <= usage.completion <= total[1]
        if at <= WINDOW:
            assert usage.engine_seconds == pytest.approx(most, abs=1e-3)
            assert [usage.prompt, usage.completion] == total
        assert len(ledger.marks) <= WINDOW / 300 + 4
        assert len(dump(ledger)) < 8192


def test_the_first_mark_has_sums_of_zero() -> None:
    ledger = after(*(look(400.0 * turn, 1, a=signals(completion=100 * turn)) for turn in range(40)))
    assert ledger.marks[0] == Mark(ledger.marks[0].at)
    assert used(ledger).completion == pytest.approx(900, abs=1)
