"""The runner's slots: shared blocks, reuse, re-entry after a preemption, and samples that follow the request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.runner_driver import GREEDY, Driver
from engine_support.tiny_models import engine_config, reference_greedy, reference_logits, save_model

from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import ScheduledChunk, StepPlan

SAMPLED = SamplingParams(temperature=0.9, top_k=50, top_p=0.95, seed=1234, max_tokens=100)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[TorchRunner, Any]:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    reference = save_model(folder, "qwen2")
    return build_runner(engine_config(folder)), reference


@pytest.fixture
def driver(model: tuple[TorchRunner, Any]) -> Driver:
    return Driver(model[0])


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(2, 199, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_slots_share_the_blocks_of_a_common_prefix(model: tuple[TorchRunner, Any], driver: Driver) -> None:
    common = prompt_of(48)
    first = driver.enter(0, common + prompt_of(9, seed=1))
    driver.step({0: 57})
    second = driver.enter(5, common + prompt_of(20, seed=2), shared=first.blocks[:3])
    driver.step({0: 1, 5: 20})
    driver.decode([0, 5], 8)
    for request, length in ((first, 57), (second, 68)):
        produced = len(request.tokens) - length
        assert request.tokens[length:] == reference_greedy(model[1], request.tokens[:length], produced)


def test_a_reused_slot_and_reused_blocks_start_afresh(model: tuple[TorchRunner, Any], driver: Driver) -> None:
    long, short = prompt_of(200, seed=3), prompt_of(21, seed=4)
    heavy = SamplingParams(temperature=1.0, seed=3, repetition_penalty=3.0, min_tokens=50, max_tokens=60, logprobs=3)
    driver.generate(2, long, 5, heavy)
    assert driver.generate(2, short, 12) == reference_greedy(model[1], short, 12)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_preempted_request_goes_on_as_if_nothing_happened(driver: Driver, sampling: SamplingParams) -> None:
    prompt = prompt_of(30, seed=5)
    whole = driver.generate(1, prompt, 20, sampling)

    request = driver.enter(1, prompt, sampling)
    driver.step({1: 30})
    driver.decode([1], 7)
    driver.leave(1)
    other = driver.enter(1, prompt_of(100, seed=6))
    driver.step({1: 100})
    again = driver.enter(4, request.tokens, sampling, prompt=30)
    driver.step({1: 1, 4: 25})
    driver.step({1: 1, 4: len(request.tokens) - 25})
    driver.decode([4, 1], 11)
    assert again.tokens[30:] == whole
    assert len(other.tokens) == 100 + 14


def test_penalties_see_prompt_and_output_after_reentry(driver: Driver) -> None:
    sampling = SamplingParams(
        temperature=0.0, repetition_penalty=1.4, frequency_penalty=0.7, presence_penalty=0.3, max_tokens=50
    )
    prompt = prompt_of(20, seed=7)
    whole = driver.generate(0, prompt, 25, sampling)
    assert whole != driver.generate(0, prompt, 25)
    driver.enter(3, prompt + whole[:10], sampling, prompt=20)
    driver.step({3: 30})
    driver.decode([3], 14)
    assert driver.live[3].tokens[20:] == whole


def test_samples_do_not_depend_on_slot_or_batch(driver: Driver) -> None:
    prompt = prompt_of(33, seed=8)
    alone = driver.generate(6, prompt, 15, SAMPLED)
    for slot, length in {0: 70, 3: 5, 7: 120}.items():
        driver.enter(slot, prompt_of(length, seed=slot), GREEDY if slot == 3 else SAMPLED)
        driver.step({slot: length})
    request = driver.enter(2, prompt, SAMPLED)
    driver.step({0: 1, 3: 1, 7: 1, 2: 33})
    driver.decode([7, 0, 2, 3], 14)
    assert request.tokens[33:] == alone


def test_parallel_samples_differ_and_repeat(driver: Driver) -> None:
    """Eight samples of one prompt and seed, in one batch and in another order in other slots; and alone."""
    prompt = prompt_of(12, seed=9)

    def samples(slots: dict[int, int]) -> dict[int, list[int]]:
        """``slots``: slot → sample index."""
        for slot, index in slots.items():
            driver.enter(slot, prompt, SAMPLED, sample_index=index)
        driver.step(dict.fromkeys(slots, 12))
        driver.decode(list(slots), 11)
        sampled = {index: driver.live[slot].tokens[12:] for slot, index in slots.items()}
        for slot in slots:
            driver.leave(slot)
        return sampled

    together = samples({slot: slot for slot in range(8)})
    assert len({tuple(tokens) for tokens in together.values()}) == 8
    assert samples({slot: (slot * 3 + 2) % 8 for slot in range(8)}) == together
    assert samples({5: 1}) == {1: together[1]}


def test_logprobs_travel_with_the_tokens(model: tuple[TorchRunner, Any], driver: Driver) -> None:
    prompt = prompt_of(18, seed=10)
    request = driver.enter(5, prompt, SamplingParams(temperature=0.0, logprobs=3, max_tokens=9))
    driver.enter(1, prompt_of(9, seed=11))
    driver.step({1: 9, 5: 18})
    driver.decode([1, 5], 1)
    assert len(request.logprobs) == 2
    assert not driver.live[1].logprobs
    for i, logprobs in enumerate(request.logprobs):
        expected = reference_logits(model[1], request.tokens[: 18 + i])[-1].log_softmax(-1)
        best = expected.topk(3)
        assert list(logprobs.token_ids) == best.indices.tolist()
        assert logprobs.logprobs == pytest.approx(best.values.tolist(), abs=1e-4)
        assert logprobs.chosen == pytest.approx(float(expected[request.tokens[18 + i]]), abs=1e-4)


def test_min_tokens_masks_the_given_ids(driver: Driver) -> None:
    prompt = prompt_of(14, seed=12)
    free = driver.generate(0, prompt, 6)
    sampling = SamplingParams(temperature=0.0, min_tokens=3, max_tokens=6)
    request = driver.enter(0, prompt, sampling, masked=(free[0],))
    driver.step({0: 14})
    driver.decode([0], 5)
    assert free[0] not in request.tokens[14:17]


def test_a_mask_holds_for_its_slot_and_step_only(model: tuple[TorchRunner, Any], driver: Driver) -> None:
    prompts = {slot: prompt_of(9 + slot, seed=20 + slot) for slot in range(3)}
    for slot, prompt in prompts.items():
        driver.enter(slot, prompt)
    driver.step({slot: len(prompt) for slot, prompt in prompts.items()})
    driver.allowed = {1: [7, 8]}
    driver.step(dict.fromkeys(prompts, 1))
    driver.allowed = {}
    driver.step(dict.fromkeys(prompts, 1))
    for slot, prompt in prompts.items():
        tokens, so_far = driver.live[slot].tokens, len(prompt) + 1
        if slot == 1:
            logits = reference_logits(model[1], tokens[:so_far])[-1]
            assert tokens[so_far] == (7 if logits[7] > logits[8] else 8)
            so_far += 1
        rest = len(tokens) - so_far
        assert tokens[so_far:] == reference_greedy(model[1], tokens[:so_far], rest)


def test_a_step_that_samples_nothing(driver: Driver) -> None:
    driver.enter(0, prompt_of(40, seed=13))
    assert driver.step({0: 39}) == {}
    assert len(driver.step({0: 1})) == 1


def test_the_last_position_of_the_longest_request(model: tuple[TorchRunner, Any], driver: Driver) -> None:
    """A slot that reaches ``max_model_len`` samples one token beyond what is ever computed."""
    limit = driver.runner.max_model_len
    driver.enter(0, prompt_of(limit - 1, seed=14))
    for start in range(0, limit - 1, 256):
        driver.step({0: min(256, limit - 1 - start)})
    driver.decode([0], 1)
    assert len(driver.live[0].tokens) == limit + 1


def test_a_sampled_token_feeds_the_next_step_without_the_host(model: tuple[TorchRunner, Any]) -> None:
    """The plan of step N+1 is made and its forward launched before the tokens of step N are looked at."""
    runner, reference = model
    driver = Driver(runner)
    prompt = prompt_of(25, seed=15)
    request = driver.enter(0, prompt)
    driver.step({0: 24})
    pending = []
    for position in range(24, 30):
        plan = StepPlan(100 + position, [ScheduledChunk(0, position, 1, True, "r0")])
        assert position < 16 * len(request.blocks)
        pending.append(runner.launch_sampling(runner.launch_forward(plan)))
    tokens = [step.result().tokens[0][0] for step in pending]
    assert tokens == reference_greedy(reference, prompt, 6)
