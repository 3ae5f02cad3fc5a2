"""The prefill budget finds chunk sizes that keep decodes under twice their time, on simulated devices."""

import random

import pytest

from blade_llm.scheduling.budget import GPU_MIN_CHUNK, PrefillBudget
from blade_llm.scheduling.step_cost import StepCost


class Device:
    """A step costs a fixed time, more for each decode, for any prefill and each of its tokens; sometimes it hiccups."""

    def __init__(
        self,
        base: float,
        per_decode: float,
        per_token: float,
        noise: float = 0.0,
        hiccups: float = 0.0,
        eager: float = 0.0,
    ) -> None:
        self.base, self.per_decode, self.per_token, self.eager = base, per_decode, per_token, eager
        self.noise, self.hiccups = noise, hiccups
        self.random = random.Random(0)

    def ideal(self, decodes: int, tokens: int) -> float:
        return self.base + decodes * self.per_decode + tokens * self.per_token + (self.eager if tokens else 0.0)

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
    assert min(count for count in tokens if count) == 8  # half, to tell the fixed part
    assert sum(tokens) >= 200 * 14
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
    assert max(tokens[2:]) <= 8


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


EAGER = {
    "0.5B": Device(0.001, 0.0, 2e-6, eager=0.0033),
    "3B": Device(0.0025, 0.0, 1e-5, eager=0.003),
    "8B": Device(0.0045, 0.0, 2.5e-5, eager=0.003),
    "8B, noisy": Device(0.0045, 0.0, 2.5e-5, noise=0.2, hiccups=0.02, eager=0.003),
}
"""Decodes replay a CUDA graph; mixed steps are launched kernel by kernel."""


@pytest.mark.parametrize("name", EAGER)
@pytest.mark.parametrize(("prompt", "most_steps"), [(1024, 14), (8000, 120)])
def test_the_fixed_part_of_a_mixed_step_does_not_shrink_chunks(name: str, prompt: int, most_steps: int) -> None:
    device = EAGER[name]
    budget = PrefillBudget(min_chunk=GPU_MIN_CHUNK)
    for _ in range(5):
        budget.observe(8, 0, device.step(8, 0))
    tokens = drive(budget, device, 8, 300)
    seconds = sum(device.ideal(8, count) for count in tokens) / len(tokens)
    assert seconds <= 2.0 * device.ideal(8, 0), "the mean time between tokens of the others"
    left, steps = prompt, 0
    while left > 0:
        allowance = budget.allowance(8)
        assert allowance is not None
        count = min(left, allowance)
        budget.observe(8, count, device.step(8, count))
        left, steps = left - count, steps + 1
    assert steps <= most_steps


def test_where_the_fixed_part_takes_all_room_chunks_are_worth_it() -> None:
    device, budget = EAGER["0.5B"], PrefillBudget(min_chunk=GPU_MIN_CHUNK)
    drive(budget, device, 8, 100)
    tokens = [count for count in drive(budget, device, 8, 300) if count]
    assert sorted(tokens)[len(tokens) // 2] == pytest.approx(4 * GPU_MIN_CHUNK, rel=0.01)


def test_a_gpu_begins_with_a_chunk_that_it_computes_beside_its_weights() -> None:
    budget = PrefillBudget(min_chunk=GPU_MIN_CHUNK)
    assert [budget.allowance(3) for _ in range(3)] == [0, 256, 256]


def test_both_parts_of_the_cost_are_told_apart() -> None:
    cost = StepCost()
    cost.observe_decode(0.002)
    for tokens in (256, 256, 128, 256, 256, 77) * 5:
        cost.observe_mixed(tokens, 0.002 + 0.003 + 1e-5 * tokens)
    assert cost.fixed == pytest.approx(0.003, rel=0.02)
    assert cost.per_token == pytest.approx(1e-5, rel=0.05)


def test_chunks_of_one_size_leave_the_fixed_part_as_it_was() -> None:
    cost = StepCost()
    cost.observe_decode(0.002)
    for tokens in (256, 128) * 20:
        cost.observe_mixed(tokens, 0.002 + 0.003 + 1e-5 * tokens)
    assert not cost.uniform
    for _ in range(200):
        cost.observe_mixed(200, 0.002 + 0.003 + 1e-5 * 200)
    assert cost.uniform
    assert cost.fixed == pytest.approx(0.003, rel=0.05)
    assert cost.added(200) == pytest.approx(0.005, rel=0.01)
