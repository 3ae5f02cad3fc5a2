"""CUDA graphs of decodes: which sizes exist, how batches are padded to them, and that nothing else changes."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.recording_graphs import RecordingGraphs, prepare_from_device
from engine_support.runner_driver import GREEDY, Driver
from engine_support.tiny_models import engine_config, reference_greedy, save_model
from engine_support.whole_engine import generated, whole_engine

from blade_llm.engine.messages import GenerateRequest
from blade_llm.models.config import load_model_config
from blade_llm.runner import build_runner
from blade_llm.runner.graphs.decode import DecodeGraphs, graph_batch_sizes
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams

SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=11, repetition_penalty=1.2, max_tokens=100)


@pytest.mark.parametrize(
    ("sizes", "largest", "max_num_seqs", "expected"),
    [
        (None, None, 64, [1, 2, 4, *range(8, 65, 8)]),
        (None, None, 1, [1]),
        (None, None, 3, [1, 2, 3]),
        (None, None, 1000, [1, 2, 4, *range(8, 257, 8)]),
        (None, 20, 64, [1, 2, 4, 8, 16, 20]),
        (None, 100, 10, [1, 2, 4, 8, 10]),
        ((64, 8, 16), 4, 64, [8, 16, 64]),
        ((8, 16, 64), None, 12, [8, 12]),
    ],
)
def test_sizes(sizes: tuple[int, ...] | None, largest: int | None, max_num_seqs: int, expected: list[int]) -> None:
    assert graph_batch_sizes(sizes, largest, max_num_seqs) == expected


def test_a_batch_takes_the_least_size_that_holds_it_and_the_rest_is_padding() -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def decode(slots: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        seen.append((slots.tolist(), starts.tolist()))
        return torch.stack([slots, starts], dim=1)

    backend = RecordingGraphs()
    graphs = DecodeGraphs(decode, [2, 4, 8], padding_slot=99, device=torch.device("cpu"), backend=backend)
    assert graphs.size_for(1) is None  # nothing captured yet
    graphs.capture()
    assert backend.captured == [8, 4, 2]
    assert [graphs.size_for(batch) for batch in (1, 2, 3, 4, 5, 8, 9)] == [2, 2, 4, 4, 8, 8, None]
    for batch in (7, 3, 1, 4, 2, 8, 5):
        slots, starts = list(range(batch)), [10 * slot + 1 for slot in range(batch)]
        hidden = graphs.decode(torch.tensor(slots), torch.tensor(starts))
        assert hidden.tolist() == [list(pair) for pair in zip(slots, starts, strict=True)]
        padding = backend.replayed[-1] - batch
        assert seen[-1] == (slots + [99] * padding, starts + [0] * padding)
    assert backend.replayed == [8, 4, 2, 4, 2, 8, 8]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    return folder, save_model(folder, "qwen2")


@pytest.fixture
def graphed(model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[TorchRunner, RecordingGraphs]:
    """A runner whose decodes of up to four sequences are replayed."""
    monkeypatch.setattr("blade_llm.runner.forward_pass.prepare", prepare_from_device)
    backend = RecordingGraphs()
    config = engine_config(
        model[0], cuda_graph_batch_sizes=(1, 2, 4), cuda_graph_max_tokens=0, max_kv_blocks=64, max_model_len=256
    )
    runner = TorchRunner(config, load_model_config(config.model_dir), lambda: backend)
    runner.warm_up()
    return runner, backend


def test_graphs_are_captured_largest_first_before_the_first_request(
    graphed: tuple[TorchRunner, RecordingGraphs], caplog: pytest.LogCaptureFixture
) -> None:
    runner, backend = graphed
    assert backend.captured == [4, 2, 1]
    assert backend.replayed == []
    assert list(runner.timings) == ["operators", "weights", "warm-up", "graphs"]
    assert runner.graphs is not None
    with caplog.at_level(logging.INFO), torch.inference_mode():
        runner.graphs.capture([2])
    assert "caching graph of graph_batch_size=2" in caplog.text


def test_replayed_decodes_give_what_eager_ones_give(
    graphed: tuple[TorchRunner, RecordingGraphs], model: tuple[Path, Any]
) -> None:
    """Batches that grow, shrink, change their slots and wait for a prefill, with and without graphs."""
    runner, backend = graphed
    eager = build_runner(engine_config(model[0], max_kv_blocks=64, max_model_len=256, disable_cuda_graph=True))
    drivers = Driver(runner), Driver(eager)
    choose = random.Random(5)
    for slot in range(5):
        prompt = [choose.randrange(2, 199) for _ in range(choose.randrange(1, 60))]
        for driver in drivers:
            driver.enter(slot, prompt, SAMPLED if slot % 2 else GREEDY)
            driver.step({slot: len(prompt)})
    for _ in range(40):
        slots = choose.sample(range(5), choose.randrange(1, 6))
        sampled = [driver.step(dict.fromkeys(slots, 1)) for driver in drivers]
        assert sampled[0] == sampled[1]
        for slot in slots:
            torch.testing.assert_close(drivers[0].logits[slot], drivers[1].logits[slot], atol=1e-4, rtol=1e-4)
    assert set(backend.replayed) == {1, 2, 4}
    assert len(backend.replayed) < 40  # those of five sequences were launched kernel by kernel


def test_padding_touches_no_block_that_can_be_given_out(graphed: tuple[TorchRunner, RecordingGraphs]) -> None:
    runner, backend = graphed
    driver = Driver(runner)
    for slot in range(3):
        driver.enter(slot, [7, 8, 9, slot])
        driver.step({slot: 4})
    cache = [tensor for layer in runner._kv_cache for tensor in layer]
    free = [block for block in range(runner.num_blocks) if block not in {0, 1, 2}]
    for tensor in cache:
        with torch.inference_mode():
            tensor[free] = 5.0
    driver.decode([0, 1, 2], 2)
    assert backend.replayed[-2:] == [4, 4]
    for tensor in cache:
        assert len(tensor) == runner.num_blocks + 1
        assert bool((tensor[free] == 5.0).all())
        assert bool((tensor[-1] != 0.0).any())


def test_a_graph_continues_a_request_as_transformers_does(
    graphed: tuple[TorchRunner, RecordingGraphs], model: tuple[Path, Any]
) -> None:
    prompt = [random.Random(3).randrange(2, 199) for _ in range(50)]
    assert Driver(graphed[0]).generate(3, prompt, 20) == reference_greedy(model[1], prompt, 20)
    assert len(graphed[1].replayed) == 19


def test_graphs_can_be_switched_off(model: tuple[Path, Any]) -> None:
    config = engine_config(model[0], disable_cuda_graph=True)
    runner = TorchRunner(config, load_model_config(config.model_dir), RecordingGraphs)
    runner.warm_up()
    assert runner.graphs is None


def test_a_whole_engine_generates_the_same_with_graphs(
    graphed: tuple[TorchRunner, RecordingGraphs], model: tuple[Path, Any]
) -> None:
    """Requests come and go, are preempted (64 blocks do not hold them all) and sample in every way."""
    eager = build_runner(engine_config(model[0], max_kv_blocks=64, max_model_len=256, disable_cuda_graph=True))
    outputs = [_outputs(runner) for runner in (graphed[0], eager)]
    assert outputs[0] == outputs[1]
    assert len(graphed[1].replayed) > 20


def _outputs(runner: TorchRunner) -> dict[str, list[int]]:
    choose = random.Random(9)
    requests = []
    for seed in range(14):
        prompt = [choose.randrange(2, 199) for _ in range(choose.randrange(60, 140))]
        sampling = SamplingParams(
            temperature=choose.choice([0.0, 0.9]), top_k=choose.choice([0, 20]), seed=seed, ignore_eos=True,
            presence_penalty=choose.choice([0.0, 0.5]), max_tokens=choose.randrange(20, 110),
        )  # fmt: skip
        requests.append(GenerateRequest(request_id=str(seed), prompt_token_ids=prompt, sampling=sampling))
    core = whole_engine(runner)
    tokens = generated(core, requests)
    assert core.state(epoch="", sequence=0, draining=False).preemptions_total > 0
    return tokens
