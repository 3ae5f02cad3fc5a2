"""The prefill budget finds chunk sizes that keep decodes under twice their time, on simulated devices."""

import random

import pytest

from blade_llm.scheduling.budget import PrefillBudget


class Device:
    """A step costs a fixed time, more for each decode and each prefill token; sometimes it hiccups."""

    def __init__(
        self, base: float, per_decode: float, per_token: float, noise: float = 0.0, hiccups: float = 0.0
    ) -> None:
        self.base, self.per_decode, self.per_token = base, per_decode, per_token
        self.noise, self.hiccups = noise, hiccups
        self.random = random.Random(0)

    def ideal(self, decodes: int, tokens: int) -> float:
        return self.base + decodes * self.per_decode + tokens * self.per_token

    def step(self, decodes: int, tokens: int) -> float:
        seconds = self.ideal(decodes, tokens) * (1 + self.random.uniform(-self.noise, self.noise))
        return seconds * (20 if self.random.random() < self.hiccups else 1)


def drive(budget: PrefillBudget, device: Device, decodes: int, steps: int, most: int = 2048) -> list[int]:
    """Steps with prefill always waiting; returns their prefill tokens."""
    tokens = []
    for _ in range(steps):
        allowance = budget.allowance(decodes)
        tokens.append(most if allowance is None else min(most, allowance))
        budget.observe(decodes, tokens[-1], device.step(decodes, tokens[-1]))
    return tokens


DEVICES = {
    "cpu": Device(0.060, 0.001, 0.002),
    "gpu": Device(0.010, 0.00005, 0.00003),
    "noisy": Device(0.010, 0.0001, 0.0002, noise=0.3),
    "hiccups": Device(0.010, 0.0001, 0.0002, noise=0.1, hiccups=0.03),
}


@pytest.mark.parametrize("name", DEVICES)
def test_steps_with_decodes_stay_under_twice_their_time(name: str) -> None:
    device, budget = DEVICES[name], PrefillBudget()
    budget.observe(0, 512, device.step(0, 512))  # the first prompt, alone
    for _ in range(5):
        budget.observe(8, 0, device.step(8, 0))
    drive(budget, device, 8, 60)
    tokens = drive(budget, device, 8, 400)
    stretched = sorted(device.ideal(8, count) / device.ideal(8, 0) for count in tokens)
    assert stretched[int(0.9 * len(stretched))] < 2.0
    # Nor is it timid: half the room is used.
    assert sum(stretched) / len(stretched) > 1.35


def test_without_decodes_there_is_no_bound() -> None:
    budget = PrefillBudget()
    budget.observe(4, 0, 0.01)
    budget.observe(0, 100, 0.5)
    assert budget.allowance(0) is None


def test_prefill_always_progresses() -> None:
    budget = PrefillBudget(min_chunk=16)
    device = Device(0.001, 0.0, 1.0)  # a prefill token costs a thousand decodes
    tokens = drive(budget, device, 1, 200)
    assert min(count for count in tokens if count) == 16
    assert tokens.count(0) <= 200 / 32 + 1


def test_without_measurements_chunks_are_small_after_the_first_probe() -> None:
    budget = PrefillBudget(first_chunk=16)
    assert [budget.allowance(3) for _ in range(4)] == [0, 16, 16, 16]


def test_chunks_grow_where_prefill_costs_nothing() -> None:
    budget = PrefillBudget(first_chunk=16, stretch=1.5)
    assert drive(budget, Device(0.01, 0.0, 0.0), 3, 8) == [0, 16, 24, 36, 54, 81, 121, 181]


class Accelerator(Device):
    """Computes tokens beside reading its weights, until there are too many."""

    def ideal(self, decodes: int, tokens: int) -> float:
        return max(self.base, tokens * self.per_token) + 1e-7 * tokens


def test_what_small_chunks_cost_is_not_trusted_for_large_ones() -> None:
    budget, device = PrefillBudget(first_chunk=16), Accelerator(0.01, 0.0, 0.00005)
    tokens = drive(budget, device, 3, 200)
    assert max(device.ideal(3, count) for count in tokens) < 1.8 * device.ideal(3, 0)
    assert sorted(tokens)[100] > 300  # 200 are free


def test_a_device_that_is_slower_than_expected_is_noticed_by_a_small_chunk() -> None:
    budget, device = PrefillBudget(first_chunk=16), Device(0.01, 0.0, 0.002)
    tokens = drive(budget, device, 3, 32)
    assert max(tokens) == 16
    assert max(tokens[2:]) <= 4


def test_the_small_end_of_a_prompt_does_not_make_the_next_one_start_small() -> None:
    budget, device = PrefillBudget(), Device(0.01, 0.0, 0.00001)
    drive(budget, device, 3, 20)
    before = budget.allowance(3)
    budget.observe(3, 2, device.step(3, 2))
    after = budget.allowance(3)
    assert before is not None
    assert after is not None
    assert after > 0.8 * before


def test_it_follows_a_growing_batch_although_prefill_never_pauses() -> None:
    budget, device = PrefillBudget(), Device(0.01, 0.001, 0.0005)
    drive(budget, device, 1, 100)
    drive(budget, device, 60, 500)
    tokens = drive(budget, device, 60, 66)
    assert max(device.ideal(60, count) for count in tokens) < 2.0 * device.ideal(60, 0)
    # Had it kept the time of a step with one decode, it would be down to the smallest chunk.
    assert sorted(tokens)[len(tokens) // 2] > 60


def test_one_prompt_is_never_a_crowd() -> None:
    """However few the running: one long prompt must not stall them."""
    budget, device = PrefillBudget(), Device(0.01, 0.0, 0.0002)
    drive(budget, device, 1, 30)
    assert device.ideal(1, budget.allowance(1, 1) or 0) < 2 * device.ideal(1, 0)
    assert budget.allowance(32, 1) == budget.allowance(32, 3)


def test_few_who_run_wait_for_many_who_do_not() -> None:
    budget, device = PrefillBudget(), Device(0.01, 0.0, 0.0002)
    drive(budget, device, 1, 30)
    alone, crowd = budget.allowance(1, 1), budget.allowance(1, 11)
    assert alone
    assert crowd
    assert crowd > 20 * alone


def test_a_clock_that_stands_still_does_no_harm() -> None:
    budget = PrefillBudget()
    for _ in range(50):
        allowance = budget.allowance(2)
        assert allowance is not None
        assert allowance <= 32
        budget.observe(2, 16, 0.0)
        budget.observe(2, 0, 0.0)
