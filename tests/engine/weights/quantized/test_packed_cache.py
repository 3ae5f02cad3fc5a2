"""Packed weights of quantised checkpoints: a later start reads nothing of them but the packed file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.compressed_tensors import F8, FORMS, FP8_TOKENS, INT8_STATIC, INT8_TOKENS, W8, compressed
from engine_support.packed_starts import keep_small_models, logits, names_read
from engine_support.quantized_checkpoints import SIZES, awq, float8, gptq, save_quantized

from blade_llm.weights.packed_cache import loading
from blade_llm.weights.packed_cache.file import PackedFile

pytestmark = pytest.mark.skipif(
    not loading.can_be_kept(torch.device("cpu"), torch.bfloat16), reason="no native kernels on this CPU"
)


@pytest.fixture(autouse=True)
def small_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_small_models(monkeypatch)


@pytest.mark.parametrize(
    "form",
    [
        gptq(4, 32, symmetric=False),
        gptq(4, 32, symmetric=False, act_order=True),
        gptq(8, -1),
        awq(32),
        FORMS["8 bits"],
        FORMS["3 bits"],
        float8((32, 32)),
        float8((32, 16)),
        compressed(W8, "int-quantized", rounded=INT8_TOKENS),
        compressed(W8, "int-quantized", rounded=INT8_STATIC),
        compressed(F8, "float-quantized", rounded=FP8_TOKENS),
    ],
    ids=["gptq", "act-order", "rows", "awq", "int8", "3 bits", "fp8", "fp8 by 16", "w8a8", "static", "w8a8 fp8"],
)
def test_a_later_start_reads_the_packed_file_alone(form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what the native kernels do not take."""
    folder, cache = tmp_path / "model", tmp_path / "cache"
    folder.mkdir()
    config, _ = form
    save_quantized(folder, "qwen2", *form, **SIZES)
    expected = logits(folder, None)
    assert torch.equal(logits(folder, cache), expected)
    (packed,) = cache.glob("*.packed")
    native = config.get("weight_block_size") != [32, 16] and form is not FORMS["3 bits"]  # in groups of 16
    assert len(PackedFile(packed).directory.linears) == (1 + 3 * 4 if native else 1)
    read = names_read(monkeypatch)
    assert torch.equal(logits(folder, cache), expected)
    assert bool(read) == (not native), read


def test_another_description_of_the_same_files_has_a_file_of_its_own(tmp_path: Path) -> None:
    folder, cache = tmp_path / "model", tmp_path / "cache"
    folder.mkdir()
    save_quantized(folder, "qwen2", *gptq(4, 32, symmetric=False), **SIZES)
    first = logits(folder, cache)
    fields = json.loads((folder / "config.json").read_text())
    fields["quantization_config"]["checkpoint_format"] = "gptq_v2"
    (folder / "config.json").write_text(json.dumps(fields))
    second = logits(folder, cache)
    assert len(list(cache.glob("*.packed"))) == 2
    assert not torch.equal(first, second)
    assert torch.equal(second, logits(folder, None))
