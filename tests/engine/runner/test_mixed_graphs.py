"""CUDA graphs of mixed steps: which sizes exist, how steps are padded to them, and that nothing else changes."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_support.recording_graphs import RecordingGraphs, prepare_from_device
from engine_support.runner_driver import GREEDY, Driver, prompt_of
from engine_support.tiny_models import engine_config, reference_greedy, save_model
from engine_support.whole_engine import generated, whole_engine

from blade_llm.engine.messages import GenerateRequest
from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.models.config import load_model_config
from blade_llm.runner import build_runner
from blade_llm.runner.graphs.mixed import MixedGraphs, graph_token_sizes
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams

SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=11, repetition_penalty=1.2, max_tokens=100)


@pytest.mark.parametrize(
    ("sizes", "largest", "budget", "expected"),
    [
        (None, None, 600, [16, 32, 64, 128, 256, 320, 384, 448, 512, 600]),
        (None, None, 8192, [16, 32, 64, 128, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048]),
        (None, 40, 8192, [16, 32, 40]),
        (None, 4096, 2560, [*graph_token_sizes(None, 2048, 4096), 2560]),
        (None, 16, 64, [16]),
        (None, None, 5, [5]),
        (None, 0, 64, []),
        ((64, 8, 16), 4, 64, [8, 16, 64]),
        ((8, 16, 64), None, 12, [8, 12]),
    ],
)
def test_sizes(sizes: tuple[int, ...] | None, largest: int | None, budget: int, expected: list[int]) -> None:
    assert graph_token_sizes(sizes, largest, budget) == expected


def test_a_step_takes_the_least_size_that_holds_it_and_the_rest_is_padding() -> None:
    seen: list[tuple[list[list[int]], int]] = []

    def forward(batch: RaggedBatch, starts: torch.Tensor, tokens: int, selected: torch.Tensor) -> torch.Tensor:
        assert batch.decodes is not None
        vectors = batch.slots, starts, batch.query_starts, batch.seq_lens, selected, batch.decodes
        seen.append(([vector.tolist() for vector in vectors], tokens))
        return selected.unsqueeze(1)

    backend = RecordingGraphs()
    graphs = MixedGraphs(forward, [4, 8], 3, 99, torch.device("cpu"), backend)
    assert graphs.size_for(1) is None  # nothing captured yet
    graphs.capture()
    nothing = [99] * 4, [0] * 4, [0] * 5, [0] * 4, [0] * 3, [0]
    assert [tokens for _, tokens in seen] == [8, 4]
    assert seen[0][0] == list(nothing)
    assert [graphs.size_for(tokens) for tokens in (1, 4, 5, 8, 9)] == [4, 4, 8, 8, None]
    step = [np.array(vector) for vector in ([5, 2], [70, 0], [1, 6], [71, 5], [0, 5])]
    for _ in range(2):  # what a step leaves does not stay for the next
        hidden = graphs.compute(8, torch.from_numpy(graphs.pack(8, *step, 1)))
        assert hidden[:2, 0].tolist() == [0, 5]
        assert seen[-1] == ([[5, 2, 99, 99], [70, 0, 0, 0], [0, 1, 6, 6, 6], [71, 5, 0, 0], [0, 5, 0], [1]], 8)
        full = [np.array(vector) for vector in ([0, 1, 2], [9, 9, 0], [1, 2, 8], [10, 10, 6], [0, 1, 7])]
        graphs.compute(8, torch.from_numpy(graphs.pack(8, *full, 2)))
        assert seen[-1] == ([[0, 1, 2, 99], [9, 9, 0, 0], [0, 1, 2, 8, 8], [10, 10, 6, 0], [0, 1, 7], [2]], 8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    return folder, save_model(folder, "qwen2")


@pytest.fixture
def graphed(model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[TorchRunner, RecordingGraphs]:
    """A runner with graphs of mixed steps of 12 to 40 tokens, whose results have nine rows, of its slots; those of
    decodes have one."""
    monkeypatch.setattr("blade_llm.runner.forward_pass.prepare", prepare_from_device)
    backend = RecordingGraphs()
    config = engine_config(
        model[0], max_num_seqs=9, cuda_graph_batch_sizes=(1,), cuda_graph_token_sizes=(12, 20, 40),
        max_kv_blocks=64, max_model_len=256,
    )  # fmt: skip
    runner = TorchRunner(config, load_model_config(config.model_dir), lambda: backend)
    runner.warm_up()
    return runner, backend


@pytest.fixture
def eager(model: tuple[Path, Any]) -> TorchRunner:
    settings = {"max_kv_blocks": 64, "max_model_len": 256, "max_num_seqs": 9, "disable_cuda_graph": True}
    return build_runner(engine_config(model[0], **settings))


def test_they_are_captured_before_those_of_decodes_largest_first(
    graphed: tuple[TorchRunner, RecordingGraphs], caplog: pytest.LogCaptureFixture
) -> None:
    runner, backend = graphed
    assert backend.captured == [9, 9, 9, 1]
    assert backend.replayed == []
    assert [graphs.sizes for graphs in runner.all_graphs] == [[12, 20, 40], [1]]
    assert runner.mixed_graphs is not None
    with caplog.at_level(logging.INFO), torch.inference_mode():
        runner.mixed_graphs.capture([20])
    assert "caching graph of graph_num_tokens=20" in caplog.text


def test_replayed_mixed_steps_give_what_launched_ones_give(
    graphed: tuple[TorchRunner, RecordingGraphs], eager: TorchRunner
) -> None:
    """Random mixtures of decodes, chunks that sample and chunks that do not, requests that come and go."""
    runner, backend = graphed
    drivers, choose = (Driver(runner), Driver(eager)), random.Random(5)
    steps = replayable = 0
    while steps < 60:
        for slot in range(9):
            live = drivers[0].live.get(slot)
            if live is None or len(live.tokens) > 120:
                prompt = prompt_of(choose.randrange(1, 60), seed=choose.randrange(1 << 20))
                for driver in drivers:
                    if live is not None:
                        driver.leave(slot)
                    driver.enter(slot, prompt, SAMPLED if slot % 2 else GREEDY)
        counts = {}
        for slot in choose.sample(range(9), choose.randrange(1, 10)):
            left = len(drivers[0].live[slot].tokens) - drivers[0].live[slot].computed
            counts[slot] = min(left, choose.choice([1, 4, 15]))
        counts = dict(sorted(counts.items(), key=lambda item: item[1] > 1))
        sampled = [driver.step(counts) for driver in drivers]
        assert sampled[0] == sampled[1]
        for slot in sampled[0]:
            torch.testing.assert_close(drivers[0].logits[slot], drivers[1].logits[slot], atol=1e-4, rtol=1e-4)
        replayable += sum(counts.values()) <= 40 and max(counts.values()) > 1
        steps += 1
    assert backend.replayed.count(9) == replayable
    assert 20 < replayable < steps


def test_padding_touches_no_block_that_can_be_given_out(graphed: tuple[TorchRunner, RecordingGraphs]) -> None:
    runner, backend = graphed
    driver = Driver(runner)
    for slot in range(3):
        driver.enter(slot, prompt_of(20 + slot, seed=slot))
    used = {0, 1, 2, 3, 4, 5}
    cache = [tensor for layer in runner._kv_cache for tensor in layer]
    free = [block for block in range(runner.num_blocks) if block not in used]
    for tensor in cache:
        with torch.inference_mode():
            tensor[free] = 5.0
    driver.step({0: 9})
    driver.step({1: 21, 2: 7})
    driver.step({1: 1, 0: 5, 2: 15})
    assert backend.replayed == [9, 9, 9]
    for tensor in cache:
        assert bool((tensor[free] == 5.0).all())


def test_forced_tokens_are_replayed_and_outputs_of_prompts_are_not(
    graphed: tuple[TorchRunner, RecordingGraphs], model: tuple[Path, Any]
) -> None:
    runner, backend = graphed
    driver, prompt = Driver(runner), prompt_of(18, seed=6)
    first, second = driver.enter(0, prompt), driver.enter(1, prompt[:7])
    driver.step({0: 18, 1: 7})
    driver.step({0: 1, 1: 1})
    assert backend.replayed == [9]
    driver.force(1, [9, 8, 7])
    driver.step({0: 1, 1: 4})
    assert backend.replayed == [9, 9]
    driver.enter(2, prompt, pooling="mean")
    driver.step({0: 1, 2: 18})
    assert backend.replayed == [9, 9]
    assert first.tokens[18:] == reference_greedy(model[1], prompt, 4)
    assert second.tokens[12:] == reference_greedy(model[1], second.tokens[:12], 1)


def test_a_step_that_would_be_mostly_padding_is_launched() -> None:
    backend = RecordingGraphs()
    graphs = MixedGraphs(lambda *step: torch.zeros(1, 1), [8, 512], 3, 99, torch.device("cpu"), backend)
    graphs.capture([8, 512])
    assert [graphs.size_for(tokens) for tokens in (5, 9, 383, 384, 512, 513)] == [8, None, None, 512, 512, None]


def test_none_can_be_wanted(model: tuple[Path, Any]) -> None:
    config = engine_config(model[0], cuda_graph_max_tokens=0, cuda_graph_batch_sizes=(2,))
    runner = TorchRunner(config, load_model_config(config.model_dir), RecordingGraphs)
    assert runner.mixed_graphs is None
    assert [graphs.sizes for graphs in runner.all_graphs] == [[2]]


def test_a_whole_engine_generates_the_same(graphed: tuple[TorchRunner, RecordingGraphs], eager: TorchRunner) -> None:
    outputs = [_outputs(runner) for runner in (graphed[0], eager)]
    assert outputs[0] == outputs[1]
    assert graphed[1].replayed.count(9) > 5


def _outputs(runner: TorchRunner) -> dict[str, list[int]]:
    choose = random.Random(9)
    requests = []
    for seed in range(20):
        prompt = [choose.randrange(2, 199) for _ in range(choose.randrange(10, 140))]
        sampling = SamplingParams(
            temperature=choose.choice([0.0, 0.9]), top_k=choose.choice([0, 20]), seed=seed, ignore_eos=True,
            max_tokens=choose.randrange(20, 110),
        )  # fmt: skip
        requests.append(GenerateRequest(request_id=str(seed), prompt_token_ids=prompt, sampling=sampling))
    return generated(whole_engine(runner), requests)
