"""Configurations of vision towers as they are published, and what is refused of them."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from typing import Any

import pytest

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.vision.config import read_vision
from blade_llm.models.vision.memory import activation_bytes, tower_bytes
from blade_llm.models.vision.names import vision_tensors
from blade_llm.spec.norm import NormSpec
from blade_llm.spec.vision.tower import VisionSpec

IDS = {"image_token_id": 151655, "video_token_id": 151656}
QWEN2_VL: dict[str, Any] = {
    "model_type": "qwen2_vl",
    "hidden_size": 1536,
    **IDS,
    "vision_config": {
        "depth": 32,
        "embed_dim": 1280,
        "mlp_ratio": 4,
        "num_heads": 16,
        "in_chans": 3,
        "hidden_size": 1536,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    },
}
QWEN25_VL: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 2048,
    **IDS,
    "vision_config": {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 2048,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
}
QWEN3_VL: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "text_config": {"hidden_size": 2560},
    **IDS,
    "vision_config": {
        "deepstack_visual_indexes": [5, 11, 17],
        "depth": 24,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1024,
        "in_channels": 3,
        "intermediate_size": 4096,
        "model_type": "qwen3_vl",
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 2560,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}
INTERNVL: dict[str, Any] = {
    "model_type": "internvl",
    "text_config": {"hidden_size": 896},
    "image_token_id": 151667,
    "downsample_ratio": 0.5,
    "projector_hidden_act": "gelu",
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
    "vision_config": {
        "attention_bias": True,
        "hidden_act": "gelu",
        "hidden_size": 1024,
        "image_size": [448, 448],
        "intermediate_size": 4096,
        "layer_norm_eps": 1e-6,
        "norm_type": "layer_norm",
        "num_attention_heads": 16,
        "num_channels": 3,
        "num_hidden_layers": 24,
        "patch_size": [14, 14],
        "use_absolute_position_embeddings": True,
        "use_mask_token": False,
        "use_mean_pooling": True,
        "use_qk_norm": False,
    },
}
PUBLISHED = {"qwen2_vl": QWEN2_VL, "qwen2_5_vl": QWEN25_VL, "qwen3_vl": QWEN3_VL, "internvl": INTERNVL}
GRID = {"qwen2_vl": (1, 148, 138), "qwen2_5_vl": (1, 148, 138), "qwen3_vl": (1, 128, 120), "internvl": (13, 32, 32)}
"""Of a picture of four megapixels."""


def _read(fields: dict[str, Any], preprocessor: dict[str, Any] | None = None, **vision: Any) -> VisionSpec:
    changed = {**fields, "vision_config": {**fields["vision_config"], **vision}}
    spec = read_vision(RawConfig(changed), preprocessor or {})
    assert spec is not None
    return spec


def test_no_tower() -> None:
    assert read_vision(RawConfig({"model_type": "qwen2", "hidden_size": 8}), {}) is None


def test_published_ones() -> None:
    spec = _read(QWEN2_VL)
    assert (spec.width, spec.head_dim, spec.num_layers, spec.hidden_size) == (1280, 80, 32, 1536)
    assert (spec.mlp.inner, spec.mlp.activation, spec.window, spec.levels) == (5120, "quick_gelu", 0, 0)
    assert (spec.image_token, spec.video_token) == (151655, 151656)
    assert spec.count((1, 34, 46)) == 391
    spec = _read(QWEN25_VL)
    assert (spec.window, spec.full_layers, spec.norm) == (8, (7, 15, 23, 31), NormSpec(1e-6))
    assert (spec.mlp.inner, spec.mlp.activation, spec.mlp.gated, spec.hidden_size) == (3420, "silu", True, 2048)
    spec = _read(QWEN3_VL, {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": 16, "merge_size": 2})
    assert spec.positions is not None
    assert (spec.positions.side, spec.deepstack, spec.levels, spec.mean) == (48, (5, 11, 17), 3, (0.5, 0.5, 0.5))
    assert (spec.mlp.activation, spec.patch_size, spec.patch_bias) == ("gelu_tanh", 16, True)
    spec = _read(INTERNVL)
    assert spec.count((13, 32, 32)) == 13 * 256
    assert spec.rows((13, 32, 32)) == 13 * 1025
    with pytest.raises(ValueError, match="32 x 30 patches are not the 32 x 32"):
        spec.count((1, 32, 30))


def test_work_of_published_ones() -> None:
    """More of a picture is more work, and windows save most of the attention."""
    for family, fields in PUBLISHED.items():
        spec, grid = _read(fields), GRID[family]
        work, rows = spec.work(grid), spec.rows(grid)
        assert rows * spec.num_layers < work < 8 * rows * spec.num_layers
        assert spec.work((grid[0] * 2, *grid[1:])) == pytest.approx(2 * work, abs=2)
        assert 2**27 < activation_bytes(spec, "bfloat16", [grid]) < 2**29
    assert _read(QWEN25_VL).work(GRID["qwen2_vl"]) < 0.6 * _read(QWEN2_VL).work(GRID["qwen2_vl"])


@pytest.mark.parametrize("family", list(PUBLISHED))
def test_all_weights_of_published_ones(family: str) -> None:
    """By name and shape as transformers has them, all of them, and their bytes."""
    import torch
    import transformers

    fields = PUBLISHED[family]
    name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL", "internvl": "InternVL"}[family]
    hidden = _read(fields).hidden_size
    text = {"hidden_size": hidden, "num_hidden_layers": 1, "num_attention_heads": 8, "intermediate_size": 8}
    config = getattr(transformers, f"{name}Config")(
        **{**fields, "text_config": {**text, "vocab_size": 32, "num_key_value_heads": 8}}
    )
    with torch.device("meta"):
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    theirs = {name: tuple(each.shape) for name, each in model.named_parameters() if "language_model" not in name}
    theirs.pop("lm_head.weight", None)
    spec = _read(fields)
    assert vision_tensors(spec).expected() == theirs
    assert tower_bytes(spec, "bfloat16") == 2 * sum(math.prod(shape) for shape in theirs.values())


@pytest.mark.parametrize("name", ["Qwen2VL", "Qwen2_5_VL", "Qwen3VL", "InternVL"])
def test_defaults_are_those_of_transformers(name: str) -> None:
    """What older files leave out."""
    import transformers

    config = getattr(transformers, f"{name}Config")()
    fields = config.to_dict()
    hidden = fields["vision_config"].get("out_hidden_size", fields["vision_config"]["hidden_size"])
    fields["text_config"] = {"hidden_size": hidden}
    short = {"model_type": config.model_type, "text_config": fields["text_config"], "vision_config": {}}
    assert read_vision(RawConfig(short), {}) == read_vision(RawConfig(fields), {})


def test_preprocessor() -> None:
    assert _read(QWEN2_VL, {"image_processor": {"image_mean": [1, 2, 3.5]}}).mean == (1.0, 2.0, 3.5)
    plain = _read(QWEN2_VL, {"do_rescale": False, "do_normalize": False, "image_std": [1, 2, 3]})
    assert (plain.rescale, plain.mean, plain.std) == (1.0, (0.0,) * 3, (1.0,) * 3)
    for wrong, message in (
        ({"image_mean": [0.5, 0.5]}, "'image_mean' must be three numbers"),
        ({"image_std": [0.5, float("nan"), 0.5]}, "'image_std' must be three finite numbers"),
        ({"image_std": [0.5, 10**400, 0.5]}, "must be three finite numbers"),
        ({"image_std": [0.5, 0, 0.5]}, "must be above 0"),
        ({"rescale_factor": 0}, "'rescale_factor' must be a finite number above 0"),
        ({"patch_size": 16}, "'patch_size' is 16 in the preprocessor, 14 in the vision tower"),
        ({"merge_size": 1}, "'merge_size' is 1 in the preprocessor"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            _read(QWEN2_VL, wrong)


@pytest.mark.parametrize(
    ("family", "changed", "message"),
    [
        ("qwen2_vl", {"hidden_act": "mish"}, "activation 'mish'"),
        ("qwen2_vl", {"in_chans": 1}, "'in_chans' 1 is not supported"),
        ("qwen2_vl", {"patch_size": [14, 12]}, "equal numbers are"),
        ("qwen2_5_vl", {"rope_parameters": {"rope_type": "yarn"}}, "'rope_type' 'yarn' is not supported"),
        ("internvl", {"use_qk_norm": True}, "'use_qk_norm' True is not supported"),
        ("internvl", {"use_mean_pooling": False}, "'use_mean_pooling' False is not supported"),
        ("internvl", {"norm_type": "batch_norm"}, "'norm_type' 'batch_norm' is not supported"),
        ("internvl", {"use_absolute_position_embeddings": False}, "False is not supported"),
    ],
)
def test_what_is_not_computed_is_refused(family: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=re.escape(message)):
        _read(PUBLISHED[family], **changed)


def test_other_architectures_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="vision tower of model_type 'llava' is not supported"):
        _read({**QWEN2_VL, "model_type": "llava"})
    for changed in (
        {"vision_feature_layer": -2},
        {"vision_feature_select_strategy": "full"},
        {"downsample_ratio": 0.4},
    ):
        with pytest.raises(UnsupportedModelError, match="supported"):
            _read({**INTERNVL, **changed})


@pytest.mark.parametrize(
    ("family", "changed", "message"),
    [
        ("qwen2_vl", {"hidden_size": 1024}, "makes embeddings of 1024, the text model takes 1536"),
        ("qwen2_vl", {"num_heads": 7}, "not a multiple of 7 heads"),
        ("qwen2_vl", {"num_heads": 640}, "cannot turn with rows and columns"),
        ("qwen2_vl", {"depth": 10**9}, "'depth' must be at most 10000"),
        ("qwen2_vl", {"patch_size": 0}, "'patch_size' must be a positive integer"),
        ("qwen2_5_vl", {"window_size": 27}, "'window_size' is smaller"),
        ("qwen2_5_vl", {"fullatt_block_indexes": ["7"]}, "must be indices of layers"),
        ("qwen3_vl", {"num_position_embeddings": 2305}, "is no square"),
        ("qwen3_vl", {"deepstack_visual_indexes": [5, 40]}, "has 24 layers"),
        ("qwen3_vl", {"deepstack_visual_indexes": [11, 5]}, "must ascend"),
        ("internvl", {"image_size": 450}, "'image_size' does not divide"),
        ("internvl", {"layer_norm_eps": -1.0}, "must be a finite number above 0"),
    ],
)
def test_what_is_senseless_is_refused(family: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        _read(PUBLISHED[family], **changed)


def test_tensors_of_published_ones() -> None:
    expected = vision_tensors(_read(QWEN3_VL)).expected()
    assert expected["model.visual.patch_embed.proj.weight"] == (1024, 3, 2, 16, 16)
    assert expected["model.visual.deepstack_merger_list.2.norm.weight"] == (4096,)
    assert expected["model.visual.merger.linear_fc2.weight"] == (2560, 4096)
    older = vision_tensors(_read(QWEN25_VL)).found_in(["visual.patch_embed.proj.weight"]).expected()
    assert older["visual.blocks.31.mlp.gate_proj.weight"] == (3420, 1280)
    assert older["visual.merger.mlp.2.bias"] == (2048,)
    assert all(name.startswith("visual.") for name in older)
    tiles = vision_tensors(_read(INTERNVL)).expected()
    assert tiles["model.vision_tower.embeddings.position_embeddings"] == (1, 1025, 1024)
    assert tiles["model.multi_modal_projector.linear_1.weight"] == (896, 4096)


def test_no_torch() -> None:
    """``blade_llm_check`` and ``blade_llm_fit`` judge towers without it."""
    script = (
        "import sys, json; from blade_llm.models.raw_config import RawConfig\n"
        "from blade_llm.models.vision import config, memory, geometry\n"
        f"spec = config.read_vision(RawConfig(json.loads({json.dumps(json.dumps(QWEN3_VL))})), {{}})\n"
        "print(memory.tower_bytes(spec, 'bfloat16'), 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.split()[1] == "False"
