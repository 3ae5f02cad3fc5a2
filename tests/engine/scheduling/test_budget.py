"""The prefill budget finds chunk sizes that keep decodes under twice their time, on simulated devices."""

import random

import pytest

from blade_llm.scheduling.budget.prefill import GPU_MIN_CHUNK, PrefillBudget
from blade_llm.scheduling.budget.step_cost import StepCost, replayed_size


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


def test_without_decodes_there_is_no_bound_but_the_length_of_a_step() -> None:
    budget = PrefillBudget(most_seconds=0.5)
    budget.observe(4, 0, 0.01)
    assert budget.allowance(0) is None
    budget.observe(0, 100, 0.25)
    assert budget.allowance(0) == 200


def falling_costs(budget: PrefillBudget) -> None:
    """Noise makes the larger chunks look cheaper than the small ones, so that a token seems to cost nothing."""
    for _ in range(3):
        budget.observe(2, 0, 0.060)
    for tokens, seconds in ((16, 0.100), (32, 0.090), (48, 0.085)):
        budget.observe(2, tokens, seconds)
    assert budget.cost.per_token == 0.0


def test_steps_stay_bounded_where_tokens_seem_to_cost_nothing() -> None:
    """Without decodes: the first by what the chunks added, further ones by what they took."""
    budget = PrefillBudget()
    falling_costs(budget)
    first = budget.allowance(0)
    assert first is not None
    assert first < 1000
    budget.observe(0, first, first * 0.002)
    assert budget.allowance(0) == 375
    budget.observe(0, 375, 375 * 0.004)
    assert (budget.allowance(0) or 0) < 375


def test_what_tokens_cost_alone_bounds_steps_with_decodes_too_where_they_seem_to_cost_nothing() -> None:
    budget, device = PrefillBudget(most_seconds=0.25), Device(0.060, 0.0, 0.002)
    budget.observe(0, 500, device.step(0, 500))
    falling_costs(budget)
    tokens = budget.allowance(2, 200)
    assert tokens
    assert device.step(2, tokens) < 0.3


def test_where_weights_take_long_to_read_chunks_stay_worth_it() -> None:
    """A large model on a CPU. What a token costs alone has the weights in it: smaller chunks would make it dearer, and
    dearer tokens chunks smaller still."""
    device, budget = Device(0.6, 0.0, 0.02), PrefillBudget()
    for _ in range(30):
        tokens = budget.allowance(0)
        tokens = 2048 if tokens is None else tokens
        assert tokens >= 64
        budget.observe(0, tokens, device.step(0, tokens))
    beside = [drive(PrefillBudget(most_seconds=seconds), device, 3, 100) for seconds in (0.5, 1e9)]
    assert beside[0] == beside[1]
    for _ in range(5):
        budget.observe(1, 0, device.step(1, 0))
    budget.observe(0, 256, device.step(0, 256))
    assert (budget.allowance(0) or 0) >= 80


def test_a_crowd_makes_no_step_longer_than_those_who_come_can_wait() -> None:
    budget, device = PrefillBudget(most_seconds=0.5), Device(0.060, 0.0, 0.002)
    drive(budget, device, 2, 60)
    for _ in range(40):
        tokens = min(2048, budget.allowance(2, 200) or 0)
        seconds = device.step(2, tokens)
        assert seconds < 0.6
        budget.observe(2, tokens, seconds)


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


class Graphs(Device):
    """Mixed steps of up to so many tokens replay a graph: their cost is that of its size."""

    sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 320, 384, 448, 512, 640, 768, 896, 1024)

    def ideal(self, decodes: int, tokens: int) -> float:
        size = replayed_size(self.sizes, decodes + tokens)
        if not tokens or size is None:
            return super().ideal(decodes, tokens)
        return super().ideal(decodes, size - decodes) - self.eager


def replaying(name: str) -> Graphs:
    device = EAGER[name]
    return Graphs(device.base, device.per_decode, device.per_token, device.noise, device.hiccups, device.eager)


@pytest.mark.parametrize("name", EAGER)
def test_chunks_fill_the_graphs_of_mixed_steps(name: str) -> None:
    """Others' tokens come as before, and more prefill tokens a second than where mixed steps are launched."""
    rates = []
    for device, sizes in ((EAGER[name], ()), (replaying(name), Graphs.sizes)):
        device.random.seed(1)
        budget = PrefillBudget(min_chunk=GPU_MIN_CHUNK, graph_sizes=sizes)
        drive(budget, device, 8, 100)
        tokens = drive(budget, device, 8, 400)
        seconds = [device.ideal(8, count) for count in tokens]
        assert sum(seconds) / len(seconds) <= 2.0 * device.ideal(8, 0)
        rates.append(sum(tokens) / sum(seconds))
    chunks = [count for count in tokens if count]
    assert {8 + count for count in chunks} <= set(Graphs.sizes)
    assert rates[1] > 1.1 * rates[0]


def test_the_launches_of_larger_steps_are_not_charged_to_replayed_ones() -> None:
    device = replaying("3B")
    budget = PrefillBudget(min_chunk=GPU_MIN_CHUNK, graph_sizes=Graphs.sizes)
    for tokens in (0, 1500, 0, 1100, 0, 2000) * 5 + (0, 248, 0, 504, 0, 120) * 5:
        budget.observe(8, tokens, device.step(8, tokens))
    assert budget.cost.fixed == pytest.approx(0.003, rel=0.1)
    assert budget.graph_cost.fixed < 0.0003
    assert budget.graph_cost.per_token == pytest.approx(1e-5, rel=0.1)


def test_padding_is_part_of_what_a_replayed_chunk_costs() -> None:
    device = replaying("3B")
    budget = PrefillBudget(min_chunk=GPU_MIN_CHUNK, graph_sizes=Graphs.sizes)
    for tokens in (0, 250, 0, 460, 0, 570) * 5:  # 264, 468 and 578 tokens in graphs of 320, 512 and 640
        budget.observe(8, tokens, device.step(8, tokens))
    assert budget.graph_cost.fixed < 0.0001
    assert budget.graph_cost.per_token == pytest.approx(1e-5, rel=0.02)


def test_a_chunk_beyond_the_graphs_is_launched_where_it_fits_beside_its_launches() -> None:
    device = Graphs(0.060, 0.0, 2e-5, eager=0.003)
    budget = PrefillBudget(min_chunk=GPU_MIN_CHUNK, graph_sizes=Graphs.sizes)
    drive(budget, device, 8, 60, most=4096)
    tokens = sorted(drive(budget, device, 8, 200, most=4096))
    assert tokens[100] > 1500


def test_small_graphs_are_used_too() -> None:
    device, budget = replaying("0.5B"), PrefillBudget(min_chunk=GPU_MIN_CHUNK, graph_sizes=(16, 32, 64, 128, 256))
    device.sizes = (16, 32, 64, 128, 256)
    tokens = [count for count in drive(budget, device, 8, 100) if count]
    assert sum(8 + count in device.sizes for count in tokens) >= 0.95 * len(tokens)


SPARSE = {
    "one large": (2048,),
    "the small ones too": (16, 32, 64, 2048),
    "doubling": (256, 512, 1024, 2048),
    "a second large": (1024, 2048),
}


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_graphs_are_not_filled_beyond_what_others_wait_for(name: str) -> None:
    device = Graphs(0.010, 0.0, 17.8e-6, eager=0.003)
    device.sizes = SPARSE[name]
    budget = PrefillBudget(min_chunk=GPU_MIN_CHUNK, graph_sizes=device.sizes)
    drive(budget, device, 32, 60)
    tokens = drive(budget, device, 32, 200)
    assert max(device.ideal(32, count) for count in tokens) < 2.0 * device.ideal(32, 0)
    assert sorted(tokens)[20] > 100, "nor are they crumbs"


def test_only_small_graphs_are_padded_much() -> None:
    sizes = (64, 256, 2048)
    steps = (1, 65, 257, 1535, 1536, 2048, 2049)
    assert [replayed_size(sizes, tokens) for tokens in steps] == [64, 256, None, None, 2048, 2048, None]


def test_steps_between_sparse_graphs_are_charged_to_what_is_launched() -> None:
    budget = PrefillBudget(min_chunk=GPU_MIN_CHUNK, graph_sizes=(2048,))
    for tokens in (0, 300, 0, 150, 0, 420) * 4:
        budget.observe(32, tokens, 0.010 + (0.003 + 1e-5 * tokens if tokens else 0.0))
    assert budget.graph_cost.per_token is None
    assert budget.cost.per_token == pytest.approx(1e-5, rel=0.05)


@pytest.mark.parametrize("forced", [0, 15, 60])
def test_a_chunk_leaves_room_in_its_graph_for_forced_tokens(forced: int) -> None:
    budget, device = PrefillBudget(min_chunk=GPU_MIN_CHUNK, graph_sizes=Graphs.sizes), replaying("3B")
    drive(budget, device, 8, 100)
    for _ in range(20):
        if tokens := budget.allowance(8, forced=forced):
            assert 8 + forced + tokens in Graphs.sizes
            assert device.ideal(8, forced + tokens) < 2.0 * device.ideal(8, 0)


def test_more_decodes_than_any_graph_holds_leave_chunks_as_they_are() -> None:
    chunks = []
    for sizes in ((), (16, 32, 64)):
        budget, device = PrefillBudget(min_chunk=GPU_MIN_CHUNK, graph_sizes=sizes), EAGER["3B"]
        chunks.append(drive(budget, device, 100, 100))
    assert chunks[0] == chunks[1]


def test_a_gpu_begins_with_a_chunk_that_it_computes_beside_its_weights() -> None:
    budget = PrefillBudget(min_chunk=GPU_MIN_CHUNK)
    assert [budget.allowance(3) for _ in range(3)] == [0, 256, 256]


def test_a_step_that_was_disturbed_is_not_what_the_encoder_measures_by() -> None:
    cost = StepCost()
    assert cost.usual_decode is None
    for seconds in (0.04, 0.09, 0.041, 0.2, 0.039):
        cost.observe_decode(seconds)
    assert cost.usual_decode == 0.041
    for _ in range(3):  # a lasting change gets through
        cost.observe_decode(0.06)
    assert cost.usual_decode == 0.06


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
