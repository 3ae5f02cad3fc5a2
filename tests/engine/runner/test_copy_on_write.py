"""What a plan changes in slots that are already there: blocks copied on write, tokens that were not sampled, and slots
that another request takes over without a break, as beams do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.recording_graphs import RecordingGraphs, prepare_from_device
from engine_support.runner_driver import GREEDY, Driver, prompt_of
from engine_support.tiny_models import engine_config, reference_greedy, reference_logits, save_model

from blade_llm.kv_quant import KVCacheQuant
from blade_llm.models.config import load_model_config
from blade_llm.runner import build_runner
from blade_llm.runner.kv_cache import allocate_kv_cache, copy_blocks, copy_tokens, give_back_kv_cache
from blade_llm.runner.kv_quant import with_kv_quant
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import BlockCopy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    return folder, save_model(folder, "qwen2")


@pytest.fixture(scope="module")
def runner(model: tuple[Path, Any]) -> TorchRunner:
    return build_runner(engine_config(model[0]))


@pytest.fixture
def driver(runner: TorchRunner) -> Driver:
    return Driver(runner)


def test_a_copied_block_is_the_copiers_own(model: tuple[Path, Any], driver: Driver) -> None:
    """Two requests share 20 tokens, 4 of them in a block that both write to."""
    prompt = prompt_of(20)
    first = driver.enter(0, prompt)
    driver.step({0: 20})
    driver.branch({3: (0, [*prompt, 77])}, GREEDY, prompt=20)
    second = driver.live[3]
    driver.step({0: 1, 3: 1})
    driver.decode([3, 0], 20)
    assert first.tokens[20:] == reference_greedy(model[1], prompt, 22)
    assert second.tokens[21:] == reference_greedy(model[1], [*prompt, 77], 21)


def test_many_copies_at_once_of_all_layers(model: tuple[Path, Any]) -> None:
    config = load_model_config(model[0])
    cache = allocate_kv_cache(config.kv, 200, 16, torch.device("cpu"), torch.float32)
    for number, tensor in enumerate(tensor for layer in cache for tensor in layer):
        tensor.copy_(torch.arange(201.0).view(-1, 1, 1, 1) + 1000 * number)
    sources, targets = torch.arange(70), torch.randperm(130)[:70] + 70
    copy_blocks(cache, sources, targets)
    for number, tensor in enumerate(tensor for layer in cache for tensor in layer):
        expected = torch.arange(201.0)
        expected[targets] = expected[sources]
        assert torch.equal(tensor, (expected + 1000 * number).view(-1, 1, 1, 1).expand(tensor.shape))


@pytest.mark.parametrize("form", ["int8", "mix_i8i4"])
def test_copies_of_packed_rows(model: tuple[Path, Any], form: KVCacheQuant) -> None:
    """Whole blocks, then single tokens, of which one is read before another is written there; and what is given back
    is zero."""
    config = with_kv_quant(load_model_config(model[0]), form)
    cache = allocate_kv_cache(config.kv, 80, 16, torch.device("cpu"), torch.float32)
    tensors = [tensor for layer in cache for tensor in layer]
    for number, tensor in enumerate(tensors):
        tensor.copy_((torch.arange(81 * 16) % 251 + number).view(81, 16, 1, 1))
    wanted = [tensor.clone() for tensor in tensors]
    targets = torch.arange(40, 80).roll(3)
    copy_blocks(cache, torch.arange(40), targets)
    copy_tokens(cache, torch.tensor([5, 21, 300]), torch.tensor([21, 300, 7]))
    for tensor, before in zip(tensors, wanted, strict=True):
        before[targets] = before[:40].clone()
        tokens = before.view(-1, *before.shape[2:])
        tokens[[21, 300, 7]] = tokens[[5, 21, 300]].clone()
        assert torch.equal(tensor, before)
    give_back_kv_cache(cache)
    assert not any(tensor.any() for tensor in tensors)


def test_a_block_is_read_before_the_plan_writes_to_it_again(driver: Driver) -> None:
    """0 goes to 1 and 2 to 0."""
    cache = driver.runner._kv_cache
    with torch.inference_mode():
        for layer in cache:
            for tensor in layer:
                tensor[:3] = torch.arange(3.0).view(-1, 1, 1, 1)
    driver.free_blocks = driver.free_blocks[3:]
    driver.enter(0, prompt_of(5))
    driver._copies = [BlockCopy(0, 1), BlockCopy(2, 0)]
    driver.step({0: 5})
    for layer in cache:
        for tensor in layer:
            assert tensor[:3, 0, 0, 0].tolist() == [2.0, 0.0, 2.0]


@pytest.mark.parametrize("forced", [1, 5, 30])
def test_forced_tokens_are_computed_in_one_step_with_the_sampled_one(
    model: tuple[Path, Any], driver: Driver, forced: int
) -> None:
    prompt, forced_tokens = prompt_of(25, seed=1), prompt_of(forced, seed=2)
    request, other = driver.enter(2, prompt), driver.enter(5, prompt[:9])
    driver.step({2: 25, 5: 9})
    driver.force(2, forced_tokens)
    driver.step({5: 1, 2: 1 + forced})
    driver.decode([2, 5], 6)
    assert request.tokens[25:26] == reference_greedy(model[1], prompt, 1)
    before = 26 + forced
    assert request.tokens[26:before] == forced_tokens
    assert request.tokens[before:] == reference_greedy(model[1], request.tokens[:before], 7)
    assert other.tokens[9:] == reference_greedy(model[1], prompt[:9], 8)


def test_forced_tokens_count_as_output_for_the_penalties(model: tuple[Path, Any], driver: Driver) -> None:
    prompt = prompt_of(12, seed=3)
    (likeliest,) = reference_greedy(model[1], prompt, 1)
    sampling = SamplingParams(temperature=0.0, presence_penalty=2.0, max_tokens=9)
    driver.enter(1, prompt, sampling)
    driver.step({1: 12})
    assert driver.live[1].tokens[12:] == [likeliest]
    driver.force(1, [11, 11])
    (sampled,) = driver.step({1: 3}).values()
    logits = reference_logits(model[1], [*prompt, likeliest, 11, 11])[-1].clone()
    logits[[likeliest, 11]] -= 2.0
    assert sampled == int(logits.argmax())


def test_beams_take_over_each_others_slots(model: tuple[Path, Any], driver: Driver) -> None:
    """A beam search whose slots change hands in every step finds what the same search on transformers finds."""
    width, steps, prompt = 3, 14, prompt_of(21, seed=4)
    sampling = SamplingParams(temperature=0.0, logprobs=2 * width, max_tokens=steps)
    driver.enter(0, prompt, sampling)
    driver.step({0: 21})
    beams = {0: (0.0, prompt)}  # slot → sum of log-probabilities, tokens
    swaps = 0
    for _ in range(steps):
        found = {slot: driver.live[slot].logprobs[-1] for slot in beams}
        candidates = [
            (beams[slot][0] + logprob, slot, token)
            for slot, top in found.items()
            for token, logprob in zip(top.token_ids, top.logprobs, strict=True)
        ]
        best = sorted(candidates, reverse=True)[:width]
        swaps += [origin for _, origin, _ in best] != list(range(width))
        beams = {slot: (score, [*beams[origin][1], token]) for slot, (score, origin, token) in enumerate(best)}
        sources = {slot: (best[slot][1], tokens) for slot, (_, tokens) in beams.items()}
        driver.branch(sources, sampling, prompt=21)
        driver.step(dict.fromkeys(beams, 1))
    assert swaps > 4
    expected = reference_beams(model[1], prompt, width, steps)
    assert [tokens for _, tokens in beams.values()] == [tokens for _, tokens in expected]
    assert [score for score, _ in beams.values()] == pytest.approx([score for score, _ in expected], abs=1e-3)


def reference_beams(reference: Any, prompt: list[int], width: int, steps: int) -> list[tuple[float, list[int]]]:
    beams = [(0.0, prompt)]
    for _ in range(steps):
        candidates = []
        for score, tokens in beams:
            best = reference_logits(reference, tokens)[-1].log_softmax(-1).topk(2 * width)
            pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            candidates += [(score + logprob, [*tokens, token]) for logprob, token in pairs]
        beams = sorted(candidates, reverse=True)[:width]
    return beams


def test_slots_with_forced_tokens_are_not_replayed_from_a_graph(
    model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blade_llm.runner.forward_pass.prepare", prepare_from_device)
    backend = RecordingGraphs()
    config = engine_config(
        model[0], cuda_graph_batch_sizes=(1, 2, 4), cuda_graph_max_tokens=0, max_kv_blocks=64, max_model_len=256
    )
    runner = TorchRunner(config, load_model_config(config.model_dir), lambda: backend)
    runner.warm_up()
    driver, prompt = Driver(runner), prompt_of(18, seed=6)
    first, second = driver.enter(0, prompt), driver.enter(1, prompt[:7])
    driver.step({0: 18, 1: 7})
    driver.decode([0, 1], 2)
    driver.force(1, [9, 8, 7])
    driver.step({0: 1, 1: 4})
    assert backend.replayed == [2, 2]
    driver.decode([1, 0], 2)
    assert backend.replayed == [2, 2, 2, 2]
    assert first.tokens[18:] == reference_greedy(model[1], prompt, 6)
    assert second.tokens[13:] == reference_greedy(model[1], second.tokens[:13], 3)
