"""Steps on Triton kernels, replayed as CUDA graphs are: nothing but device memory decides what they compute."""

from __future__ import annotations

from pathlib import Path

import engine_support.triton_interpreter as triton_interpreter
import pytest
import torch
from engine_support.recording_graphs import RecordingGraphs
from engine_support.runner_driver import Driver
from engine_support.tiny_models import engine_config, save_model

from blade_llm.models.config import load_model_config
from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner

pytestmark = pytest.mark.skipif(triton_interpreter.COMPILED, reason="compares with torch operators on the CPU")


def generate(driver: Driver) -> dict[int, list[int]]:
    """Three requests of different lengths that stop one by one."""
    for slot, length in enumerate((3, 40, 17)):
        prompt = torch.randint(2, 199, (length,), generator=torch.Generator().manual_seed(slot)).tolist()
        driver.enter(slot, prompt)
        driver.step({slot: length})
    for slots in ([0, 1, 2], [2, 0], [1], [0, 2, 1]):
        driver.decode(slots, 2)
    return {slot: request.tokens for slot, request in driver.live.items()}


def test_replayed_decodes_sample_what_torch_operators_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path, "qwen2", num_hidden_layers=2)
    config = engine_config(tmp_path, max_model_len=128, cuda_graph_batch_sizes=(2, 4), cuda_graph_max_tokens=0)
    expected = generate(Driver(build_runner(config)))
    triton_interpreter.use_triton(monkeypatch)
    backend = RecordingGraphs()
    runner = TorchRunner(config, load_model_config(config.model_dir), lambda: backend)
    runner.warm_up()
    assert generate(Driver(runner)) == expected
    assert backend.replayed == [4, 4, 2, 2, 2, 2, 4, 4]


def test_replayed_mixed_steps_sample_what_torch_operators_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decodes beside chunks, a chunk that samples nothing, a chunk of one token out of order, chunks alone."""

    def serve(driver: Driver) -> dict[int, list[int]]:
        for slot, length in enumerate((3, 40, 17, 25)):
            prompt = torch.randint(2, 199, (length,), generator=torch.Generator().manual_seed(slot)).tolist()
            driver.enter(slot, prompt)
        for counts in ({0: 3}, {0: 1, 1: 20}, {0: 1, 1: 19, 2: 17}, {0: 1, 2: 1, 1: 1, 3: 24}, {0: 1, 3: 1, 2: 1}):
            driver.step(counts)
        driver.leave(0)
        driver.enter(0, [5, 6, 7, 8])
        driver.step({2: 1, 1: 1, 0: 4})
        return {slot: request.tokens for slot, request in driver.live.items()}

    save_model(tmp_path, "qwen2", num_hidden_layers=2)
    config = engine_config(tmp_path, max_model_len=128, cuda_graph_batch_sizes=(1,), cuda_graph_token_sizes=(8, 40))
    expected = serve(Driver(build_runner(config)))
    triton_interpreter.use_triton(monkeypatch)
    backend = RecordingGraphs()
    runner = TorchRunner(config, load_model_config(config.model_dir), lambda: backend)
    runner.warm_up()
    assert serve(Driver(runner)) == expected
    assert backend.replayed == [8] * 5  # as many rows as slots; the step of three decodes was launched
