"""Layers that a quantised checkpoint has as they were, without a word in its configuration: the files tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.quantized_checkpoints import SIZES, awq, gptq, quantize_folder
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import SHAPE, engine_config
from examples.families.weights import randomize

from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.runner import build_runner

FORMS = {"gptq": gptq(4, 16), "awq": awq(16)}


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_the_head_of_a_cross_encoder(tmp_path: Path, form: Any) -> None:
    """Its one output would not fill a 32-bit integer."""
    from transformers import Qwen2Config, Qwen2ForSequenceClassification

    config, quantize = form
    plain, folder = tmp_path / "plain", tmp_path / "quantised"
    torch.manual_seed(20240607)
    model = Qwen2ForSequenceClassification(Qwen2Config(**{**SHAPE, **SIZES}, num_labels=1, pad_token_id=0))
    randomize(model)
    model.half().save_pretrained(plain)
    quantize_folder(plain, folder, config, lambda name, weight: None if name == "score" else quantize(name, weight))
    reference = Qwen2ForSequenceClassification.from_pretrained(plain, attn_implementation="eager", dtype=torch.float32)
    tokens = [max(token, 10) for token in prompt_of(40)]
    settings = engine_config(folder, task="score")
    driver = Driver(build_runner(settings))
    driver.enter(0, tokens, pooling="last")
    driver.step({0: 40})
    with torch.no_grad():
        expected = float(reference.eval()(torch.tensor([tokens])).logits[0, 0])
    assert float(driver.embeddings[0]) == pytest.approx(expected, abs=1e-4)
    assert check_memory_fit(settings, limit=1 << 34).status == "PASS"
