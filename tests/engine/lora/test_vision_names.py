"""Adapters for models with images: PEFT takes the names that transformers has in memory, which have changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_support.adapters import targets_of
from engine_support.families import ROWS, save_row

from blade_llm.lora.errors import AdapterError

NAMES = {
    "qwen2-vl": ("model.layers.1", "model.language_model.layers.1"),
    "qwen2.5-vl": ("model.layers.1", "model.language_model.layers.1"),
    "internvl": ("language_model.model.layers.1", "model.language_model.layers.1"),
}


@pytest.mark.parametrize("name", list(NAMES))
def test_both_names_are_the_same_layer(name: str, tmp_path: Path) -> None:
    save_row(tmp_path, ROWS[name])
    targets = targets_of(tmp_path)
    for module in ("self_attn.v_proj", "mlp.down_proj"):
        published, nested = (targets.find(f"{layer}.{module}") for layer in NAMES[name])
        assert published == nested
        assert published.part.module == f"{NAMES[name][0]}.{module}"
    assert not [module for module in targets.modules if "model.language_model" in module]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("qwen2-vl", "model.visual.blocks.0.attn.qkv"),
        ("qwen2.5-vl", "visual.merger.mlp.0"),
        ("qwen3-vl", "model.visual.blocks.0.mlp.linear_fc1"),
        ("internvl", "model.vision_tower.encoder.layer.0.mlp.fc1"),
    ],
)
def test_the_tower_takes_none(name: str, module: str, tmp_path: Path) -> None:
    save_row(tmp_path, ROWS[name])
    with pytest.raises(AdapterError, match=f"{module} is a part of the vision tower, which takes no adapter"):
        targets_of(tmp_path).find(module)
    with pytest.raises(AdapterError, match="this model has no layer model_nothing"):
        targets_of(tmp_path).find("model_nothing")
