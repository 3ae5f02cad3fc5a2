"""Ranks on Triton kernels, compiled on one GPU or in the interpreter: at the shapes that dividing a model makes they
compute what one rank computes, compile nothing in service, and replay what they launch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import engine_support.triton_interpreter as triton_interpreter
import pytest
import torch
from engine_support.lone_rank import LoneRank
from engine_support.recording_graphs import RecordingGraphs
from engine_support.runner_driver import GREEDY, Driver
from engine_support.thread_ranks import ThreadRanks, thread_ranks
from engine_support.tiny_models import engine_config, save_model

from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import rank_model
from blade_llm.parallel.layout import RankLayout
from blade_llm.runner import build_runner, device, torch_runner
from blade_llm.runner.graphs.decode import CudaGraphs, GraphBackend
from blade_llm.runner.startup.kernels import warm_all
from blade_llm.runner.torch_runner import TorchRunner
from blade_llm.sampling.parameters import SamplingParams

SHAPES: dict[str, tuple[dict[str, Any], int, int]] = {
    "odd_heads": ({"hidden_size": 48, "num_attention_heads": 6}, 2, 1),
    "copied_key_heads": ({"num_hidden_layers": 1}, 4, 1),
    "stages": ({}, 1, 2),
}
"""Changes of the tiny model, of whose 199 tokens no number of ranks has as many each; tensor ranks and stages."""
KINDS = [
    GREEDY,
    SamplingParams(temperature=0.8, seed=3, max_tokens=50),
    SamplingParams(temperature=1.0, seed=5, presence_penalty=1.0, top_k=30, top_p=0.8, logprobs=2, max_tokens=50),
]


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks are on the same device, however many there are: they are threads."""
    monkeypatch.setattr(torch_runner, "choose_device", lambda rank=0: device.choose_device())


def save(folder: Path, changes: dict[str, Any]) -> Path:
    save_model(folder, "qwen2", **{"num_hidden_layers": 2, **changes})
    return folder


def generate(runner: TorchRunner | ThreadRanks) -> dict[int, list[int]]:
    """Greedy and sampled requests, one of them after a mask: prefilled in chunks while others decode, then decoded
    together."""
    driver = Driver(runner)  # type: ignore[arg-type]
    driver.allowed = {2: list(range(2, 150))}
    lengths = {slot: 3 + 9 * slot for slot in range(len(KINDS))}
    for slot, length in lengths.items():
        prompt = torch.randint(2, 199, (length,), generator=torch.Generator().manual_seed(slot)).tolist()
        driver.enter(slot, prompt, KINDS[slot], masked=(1, 7) if slot else ())
    driver.step({0: 3, 1: 12, 2: 10})
    driver.step({0: 1, 1: 1, 2: 11})
    driver.decode(list(lengths), 2)
    return {slot: request.tokens[lengths[slot] :] for slot, request in driver.live.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_sample_what_one_rank_samples_and_compile_nothing_in_service(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, size, stages = SHAPES[shape]
    folder = save(tmp_path, changes)
    expected = generate(build_runner(engine_config(folder)))  # on a CPU by torch's operators
    triton_interpreter.use_triton(monkeypatch)
    ranks = thread_ranks(folder, size, stages, in_turns=True, disable_cuda_graph=True)
    if triton_interpreter.COMPILED:
        assert generate(ranks) == expected
        return
    variants = triton_interpreter.record_launches(monkeypatch)
    for runner in ranks.runners:
        of_runner = runner.tables, runner._kv_cache, runner.dtype
        warm_all(runner.model, runner.model_config, runner.config, *of_runner, False)
    warmed = set(variants)
    variants.clear()
    assert generate(ranks) == expected
    assert len({variant[0] for variant in variants}) >= 9, "not all operators ran on their kernels"
    assert variants <= warmed


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_replays_what_it_launches(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4
    folder = save(tmp_path, {})
    triton_interpreter.use_triton(monkeypatch)
    own = rank_model(read_model_config(folder), RankLayout(size), rank)
    backend: Callable[[], GraphBackend] = CudaGraphs if triton_interpreter.COMPILED else RecordingGraphs
    sizes = {"cuda_graph_batch_sizes": (2, 4), "cuda_graph_token_sizes": (16, 32), "max_model_len": 128}
    drivers = []
    for disabled in (False, True):
        config = engine_config(folder, tensor_parallel_size=size, disable_cuda_graph=disabled, **sizes)
        runner = TorchRunner(config, own, backend, LoneRank(rank, size))
        runner.warm_up()
        assert (runner.graphs is None) == disabled
        drivers.append(Driver(runner))
    for counts in ({0: 20}, {0: 1, 1: 9}, {1: 1, 0: 1}, {0: 1, 1: 1, 2: 13}, {2: 1, 0: 1, 1: 1}):
        for driver in drivers:
            for slot in counts.keys() - driver.live.keys():
                driver.enter(slot, list(range(20 + slot, 40 + slot))[: counts[slot]])
        sampled = [driver.step(counts) for driver in drivers]
        assert sampled[0] == sampled[1]
        for slot, logits in drivers[0].logits.items():
            torch.testing.assert_close(logits, drivers[1].logits[slot], atol=1e-4, rtol=1e-4)
