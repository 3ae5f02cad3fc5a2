"""``--quant`` and ``--deterministic`` as a whole model obeys them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.runner_driver import Driver
from engine_support.tiny_models import engine_config, reference_logits, save_model

from blade_llm.models.errors import UnsupportedSettingError
from blade_llm.runner import build_runner, device
from blade_llm.runner.device import require_quantization
from blade_llm.runner.torch_runner import TorchRunner


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_model(folder, "qwen2", torch.bfloat16, tie_word_embeddings=True)
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> torch.Tensor:
    from engine_support.tiny_models import load_reference

    return reference_logits(load_reference(folder), prompt_of(70))[-1]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, 199, (length,), generator=generator).tolist()


def runner_of(folder: Path, **overrides: Any) -> TorchRunner:
    return build_runner(engine_config(folder, **{"dtype": "bfloat16"} | overrides))


def logits_of(runner: TorchRunner) -> torch.Tensor:
    driver = Driver(runner)
    driver.enter(0, prompt_of(70))
    driver.step({0: 70})
    logits = driver.logits[0].float()
    driver.leave(0)
    return logits


@pytest.mark.parametrize("dtype", ["bfloat16", "auto"])
def test_quantised_models_compute_nearly_the_same(folder: Path, expected: torch.Tensor, dtype: str) -> None:
    errors = {}
    for quant in ("none", "int8", "int4"):
        logits = logits_of(runner_of(folder, quant=quant, dtype=dtype))
        errors[quant] = float((logits - expected).norm() / expected.norm())
    assert errors["none"] < 0.03
    assert errors["int8"] < 0.06
    assert errors["int4"] < 0.5  # a random model of a few dozen dimensions: errors do not average out
    assert errors["int4"] > 2 * errors["int8"]


def test_the_memory_plan_counts_the_quantised_weights(folder: Path) -> None:
    weights = {quant: runner_of(folder, quant=quant).memory_plan.weights for quant in ("none", "int8", "int4")}
    assert weights["none"] > weights["int8"] > weights["int4"]


@pytest.mark.parametrize("quant", ["none", "int8", "int4"])
def test_deterministic_logits_do_not_depend_on_the_batch(folder: Path, quant: str) -> None:
    """A prompt at once, in pieces, and beside others: the same bits."""
    runner = runner_of(folder, quant=quant, deterministic=True)
    alone = logits_of(runner)
    driver = Driver(runner)
    for slot in range(1, 5):
        driver.enter(slot, prompt_of(20 + slot, seed=slot))
    driver.enter(0, prompt_of(70))
    driver.step({0: 70, 1: 21, 2: 22, 3: 23, 4: 24})
    assert torch.equal(driver.logits[0].float(), alone)


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_without_a_kernel_quantisation_is_refused(folder: Path, quant: str) -> None:
    with pytest.raises(UnsupportedSettingError, match=f"--quant {quant} needs activations in bf16, not float32"):
        runner_of(folder, quant=quant, dtype="float32")
    gpu = torch.device("cuda")
    with pytest.raises(UnsupportedSettingError, match=f"--quant {quant} has no kernel for GPUs yet.*; leave it out"):
        require_quantization(quant, gpu, "bfloat16")  # type: ignore[arg-type]
    require_quantization("none", gpu, "bfloat16")


def test_the_reference_is_there_for_those_who_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "torch_only", lambda: True)
    require_quantization("int4", torch.device("cpu"), "float32")


def test_quantised_weights_are_multiplied_in_bf16_whatever_the_checkpoint_has(tmp_path: Path) -> None:
    save_model(tmp_path, "qwen2", torch.float32)
    assert runner_of(tmp_path, quant="int8", dtype="auto").dtype_name == "bfloat16"
    assert runner_of(tmp_path, dtype="auto").dtype_name == "float32"
