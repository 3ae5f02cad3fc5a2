"""The estimate of `config.json` alone is within 5 % of what the engine plans and measures once it has started: ten
families, in the types and quantisations that differ in memory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_support.families import ROWS, Row, save_row
from engine_support.tiny_models import engine_config
from engine_support.vision_models import save_vision_model

from blade_llm.fit.estimate import Device, estimate
from blade_llm.runner import build_runner

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"dtype": "float32"}),
    "qwen2, bf16": ("qwen2", {"dtype": "bfloat16"}),
    "qwen3, experts": ("qwen3-moe", {"dtype": "float32"}),
    "mixtral, KV in 8 bits": ("mixtral", {"dtype": "float32", "kv_cache_quant": "int8"}),
    "deepseek, latent": ("deepseek-v2", {"dtype": "bfloat16"}),
    "phi3, weights in 8 bits": ("phi3", {"dtype": "bfloat16", "quant": "int8"}),
    "falcon, KV in 4 bits": ("falcon-new", {"dtype": "bfloat16", "kv_cache_quant": "int4"}),
    "opt, weights in 4 bits": ("opt", {"dtype": "bfloat16", "quant": "int4"}),
    "bloom": ("bloom", {"dtype": "bfloat16"}),
    "gemma, tied": ("gemma2", {"dtype": "float32"}),
    "chatglm": ("chatglm", {"dtype": "float32"}),
    "gpt2, by transformers": ("gpt2-modules", {"dtype": "float32"}),
}
WIDER = {"vocab_size": 1024, "hidden_size": 192, "intermediate_size": 336}
"""So that kernels' padding is as little of the whole as it is in models that people serve."""
LATENT = {"q_lora_rank": 96, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}


def wider(row: Row) -> Row:
    """The row with a larger model."""
    shape = {name: WIDER.get(name, value) for name, value in row.shape.items()}
    return replace(
        row, shape=shape, fields={**row.fields, **{name: LATENT[name] for name in LATENT if name in row.fields}}
    )


@pytest.mark.parametrize("name", CASES)
def test_the_estimate_is_what_the_engine_measures(name: str, tmp_path: Path) -> None:
    row = wider(ROWS[CASES[name][0]])
    fields = {**row.runner, **CASES[name][1]}
    save_row(tmp_path / "whole", row)
    config = engine_config(tmp_path / "whole", kv_cache_bytes=3_000_000, **fields)
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "whole" / "config.json", tmp_path / "alone")  # no weights: only their description
    alone = msgspec.structs.replace(config, model=str(tmp_path / "alone"))

    found = estimate(alone, Device(None, 8 << 30))
    measured = build_runner(config).memory_plan

    assert measured is not None
    assert found.fits
    assert found.kv_tokens == measured.kv_tokens
    assert found.kv_token * 16 == measured.kv_block_bytes
    assert found.max_model_len == measured.max_model_len
    assert found.concurrency == pytest.approx(measured.concurrent_at_max_len)
    assert found.weights == pytest.approx(measured.weights, rel=0.05)


@pytest.mark.parametrize("row", ["qwen2-vl", "internvl"])
def test_the_estimate_counts_the_vision_tower_and_its_cache(row: str, tmp_path: Path) -> None:
    folder = save_vision_model(tmp_path, row).folder
    config = engine_config(folder, kv_cache_bytes=3_000_000, encoder_cache_bytes=100_000, max_model_len=128)
    found = estimate(config, Device(None, 8 << 30))
    measured = build_runner(config).memory_plan
    assert measured is not None
    tower = found.vision - measured.encoder
    assert tower > 0
    assert found.weights + tower == pytest.approx(measured.weights, rel=0.05)
    assert found.vision > measured.encoder > 100_000
    assert "vision tower and images" in found.verdict


def test_without_its_tower_a_model_is_counted_as_text(tmp_path: Path) -> None:
    folder = save_vision_model(tmp_path, "qwen2-vl").folder
    config = engine_config(folder, kv_cache_bytes=3_000_000, max_model_len=128, with_visual=False)
    found = estimate(config, Device(None, 8 << 30))
    runner = build_runner(config)
    assert runner.memory_plan is not None
    assert runner.images is None
    assert found.vision == runner.memory_plan.encoder == 0
    assert found.weights == pytest.approx(runner.memory_plan.weights, rel=0.05)
    assert "vision tower" not in found.verdict
