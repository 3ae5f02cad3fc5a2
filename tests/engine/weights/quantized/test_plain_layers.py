"""Layers that a quantised checkpoint has as they were, without a word in its configuration: the files tell."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.compressed_tensors import F8, W8, compressed
from engine_support.quantized_checkpoints import SIZES, awq, float8, gptq, quantize_folder, save_quantized
from engine_support.runner_driver import Driver, prompt_of
from engine_support.tiny_models import SHAPE, engine_config, reference_greedy
from examples.families.weights import randomize
from safetensors.torch import load_file, save_file

from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.models.errors import ModelFilesError
from blade_llm.runner import build_runner

FORMS = {"gptq": gptq(4, 16), "awq": awq(16), "fp8": compressed(F8, "float-quantized")}


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


@pytest.mark.parametrize(
    "form",
    [float8((32, 32)), float8(None), compressed(F8, "float-quantized"), compressed(W8, "int-quantized")],
    ids=["fp8, blocks", "fp8, one scale", "floats", "integers"],
)
def test_a_plain_weight_of_the_same_name(tmp_path: Path, form: Any) -> None:
    """Where quantised ones have no name of their own."""
    config, quantize = form

    def some(module: str, weight: torch.Tensor) -> Any:
        return None if module.endswith("layers.1.mlp.down_proj") else quantize(module, weight)

    reference = save_quantized(tmp_path, "qwen2", config, some, **SIZES)
    driver = Driver(build_runner(engine_config(tmp_path)))
    assert driver.generate(0, prompt_of(40), 12) == reference_greedy(reference, prompt_of(40), 12)


@pytest.mark.parametrize(
    ("form", "dtype"), [(float8(None), "F8_E4M3"), (compressed(W8, "int-quantized"), "I8")], ids=["fp8", "integers"]
)
def test_a_quantised_weight_without_its_scale_is_refused(tmp_path: Path, form: Any, dtype: str) -> None:
    save_quantized(tmp_path, "qwen2", *form, **SIZES)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight_scale"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFilesError, match=f"weight type: .*down_proj.weight is {dtype} .*, others only"):
        build_runner(engine_config(tmp_path))


@pytest.mark.parametrize(("form", "sizes"), [(gptq(4, 32), (1, 1)), (float8((32, 32)), (2, 1)), (awq(16), (1, 2))])
def test_the_memory_of_what_is_plain(form: Any, sizes: tuple[int, int], tmp_path: Path) -> None:
    """As measured: the checkpoint that says it of all layers, and the one where it is true, do not take the same."""
    config, quantize = form

    def some(module: str, weight: torch.Tensor) -> Any:
        return None if ".mlp." in module else quantize(module, weight)

    counted = []
    for name, rule in (("some", some), ("all", quantize)):
        save_quantized(tmp_path / name, "qwen2", config, rule, **SIZES)
        ranks = {"tensor_parallel_size": sizes[0], "pipeline_parallel_size": sizes[1]}
        detail = check_memory_fit(engine_config(tmp_path / name, **ranks), limit=1 << 34).detail
        found = re.search(r"weights (\d+) bytes", detail)
        assert found is not None, detail
        counted.append(int(found[1]))
    fields = json.loads((tmp_path / "all" / "config.json").read_text())
    mlp = 3 * fields["num_hidden_layers"] * fields["hidden_size"] * fields["intermediate_size"]
    assert counted[0] - counted[1] > 2.5 * mlp / max(sizes)
