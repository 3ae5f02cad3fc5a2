"""Each family computes what transformers computes: logits in every kind of step, and greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.runner_driver import Driver
from engine_support.tiny_models import engine_config, reference_greedy, reference_logits, save_model

from blade_llm.runner import build_runner
from blade_llm.runner.torch_runner import TorchRunner

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {"tie_word_embeddings": False}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "llama": ("llama", {"tie_word_embeddings": False}),
    "llama-all-heads": ("llama", {"num_key_value_heads": 8, "tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 16}),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "linear-rope": ("llama", {"rope_parameters": LINEAR_ROPE}),
}


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[TorchRunner, Any]:
    family, overrides = MODELS[request.param]
    folder: Path = tmp_path_factory.mktemp(request.param)
    reference = save_model(folder, family, **overrides)
    return build_runner(engine_config(folder)), reference


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 199, (length,), generator=generator).tolist()


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_prefill_and_decode(model: tuple[TorchRunner, Any]) -> None:
    runner, reference = model
    driver = Driver(runner)
    prompt = prompt_of(75)
    request = driver.enter(3, prompt)
    driver.step({3: 75})
    close(driver.logits[3], reference_logits(reference, prompt)[-1])
    driver.decode([3], 20)
    close(driver.logits[3], reference_logits(reference, request.tokens[:-1])[-1])
    assert request.tokens[75:] == reference_greedy(reference, prompt, 21)
    driver.leave(3)


@pytest.mark.parametrize("chunks", [[1, 16, 15, 33, 10], [40, 1, 1, 33], [64, 11]])
def test_chunked_prefill(model: tuple[TorchRunner, Any], chunks: list[int]) -> None:
    runner, reference = model
    driver = Driver(runner)
    prompt = prompt_of(75, seed=1)
    driver.enter(0, prompt)
    for chunk in chunks:
        driver.step({0: chunk})
    close(driver.logits[0], reference_logits(reference, prompt)[-1])


def test_mixed_batch(model: tuple[TorchRunner, Any]) -> None:
    """Decodes of very different lengths together with the chunks of two prefills."""
    runner, reference = model
    driver = Driver(runner)
    lengths = {5: 190, 0: 3, 7: 64, 2: 17}
    for slot, length in lengths.items():
        driver.enter(slot, prompt_of(length, seed=slot))
        driver.step({slot: length})
    for slot, length in {1: 90, 6: 41}.items():
        driver.enter(slot, prompt_of(length, seed=slot))
    driver.step({**dict.fromkeys(lengths, 1), 1: 50, 6: 41})
    driver.step({**dict.fromkeys(lengths, 1), 6: 1, 1: 40})
    for slot, request in driver.live.items():
        close(driver.logits[slot], reference_logits(reference, request.tokens[:-1])[-1])
