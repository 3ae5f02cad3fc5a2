"""``--deterministic``: a request's logits are the same bits alone, in company, in one prefill and in chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.runner_driver import Driver
from engine_support.tiny_models import engine_config, save_model

from blade_llm.runner import build_runner

pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder: Path = tmp_path_factory.mktemp("qwen2")
    return folder, save_model(folder, "qwen2")


@pytest.mark.parametrize(
    ("quant", "dtype"), [("none", "float32"), ("none", "bfloat16"), ("int8", "bfloat16"), ("int4", "bfloat16")]
)
def test_logits_are_the_same_bits_in_any_batch(model: tuple[Path, Any], quant: str, dtype: str) -> None:
    if quant != "none" and torch.cuda.is_available():
        pytest.skip("no kernel for GPUs")
    runner = build_runner(engine_config(model[0], dtype=dtype, deterministic=True, quant=quant))
    driver = Driver(runner)
    prompt = list(range(20, 150))
    driver.enter(0, prompt)
    driver.step({0: 130})
    driver.decode([0], 3)
    alone = driver.logits[0].clone()
    driver.leave(0)
    for slot in range(1, 6):
        driver.enter(slot, list(range(30, 60 + slot)))
    driver.enter(7, prompt)
    driver.step({1: 31, 7: 60})
    driver.step({1: 1, 2: 32, 7: 70})
    driver.step({1: 1, 2: 1, 3: 33, 7: 1})
    driver.decode([7, 3, 1], 2)
    assert torch.equal(driver.logits[7], alone)
