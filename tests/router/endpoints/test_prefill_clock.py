"""What is learned of an engine's prefill, from made-up times."""

import random

import pytest

from blade_router.endpoints.prefill_clock import PrefillClock


def one_by_one(clock: PrefillClock, rate: float, blocks: list[float], start: float = 100.0) -> float:
    """All prompts are sent at once, and computed in turn; returns the end."""
    sent = [clock.sent(start, each, False) for each in blocks]
    now = start
    for reference, each in zip(sent, blocks, strict=True):
        now += each * rate
        clock.first_byte(now, reference, each, 0.0, False)
    return now


def test_the_rate_is_what_lies_between_first_bytes() -> None:
    clock = PrefillClock()
    end = one_by_one(clock, 0.006, [10.0, 4.0, 20.0, 7.0])
    assert clock.block == pytest.approx(0.006)
    assert clock.wait(end, 1) == 0.0
    clock.sent(end, 10.0, False)
    assert clock.wait(end + 0.02, 1) == pytest.approx(0.04)


def test_outliers_hardly_count() -> None:
    clock, rng, now = PrefillClock(), random.Random(1), 100.0
    for _ in range(200):
        rate = 0.1 if rng.random() < 0.05 else 0.003
        now = one_by_one(clock, rate, [10.0], now)
    assert 0.0025 < clock.block < 0.004


def test_a_prompt_that_was_cached_after_all_says_nothing() -> None:
    clock = PrefillClock()
    now = one_by_one(clock, 0.006, [10.0] * 5)
    for _ in range(50):
        now = one_by_one(clock, 0.0001, [10.0], now)
    assert clock.block == pytest.approx(0.006)


def test_an_engine_that_becomes_slower_is_found_out() -> None:
    clock = PrefillClock()
    now = one_by_one(clock, 0.002, [10.0] * 20)
    one_by_one(clock, 0.005, [10.0] * 150, now)
    assert clock.block > 0.0045


def test_responses_in_one_piece_show_when_their_queue_moves() -> None:
    clock, now = PrefillClock(), 100.0
    for _ in range(20):  # short ones: decoding takes 50 ms
        reference = clock.sent(now, 0.1, True)
        now += 0.05
        clock.first_byte(now, reference, 0.1, 16.0, True)
    assert clock.delay == pytest.approx(0.05, abs=0.002)
    for _ in range(100):
        reference = clock.sent(now, 16.0, True)
        now += 0.05 + 16 * 0.004
        clock.first_byte(now, reference, 16.0, 0.0, True)
    assert clock.block == pytest.approx(0.004, rel=0.2)


def test_an_engine_that_does_not_answer_costs_as_much_as_it_is_late() -> None:
    for whole in (False, True):
        clock = PrefillClock()
        clock.sent(100.0, 1.0, whole)
        assert clock.wait(130.0, 1) > 25.0


def test_a_request_that_failed_leaves_no_queue() -> None:
    for whole in (False, True):
        clock = PrefillClock()
        clock.sent(100.0, 500.0, whole)
        clock.failed(500.0, whole)
        assert clock.wait(100.1, 1) == 0.0


def test_other_routers_wait_there_as_well() -> None:
    clock = PrefillClock()
    clock.sent(100.0, 10.0, False)
    assert clock.wait(100.0, 3) == pytest.approx(3 * clock.wait(100.0, 1))


def test_one_stream_that_took_long_moves_an_output_token_by_little() -> None:
    clock = PrefillClock()
    for _ in range(50):
        clock.decoded(2.0, 100)
        clock.ended(2.5)
    clock.decoded(1800.0, 100)
    clock.ended(1800.0)
    assert clock.token < 0.023
    assert clock.service < 2.8
