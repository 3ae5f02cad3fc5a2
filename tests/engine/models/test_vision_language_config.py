"""Configurations of models with images, as hubs have them and as transformers saves them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from blade_llm.layers.rope import RotaryTable
from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.families.registry import FAMILIES
from blade_llm.models.implementation import read_model_config
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.rope import RopeSpec, YarnScaling

QWEN2_VL: dict[str, Any] = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 1536,
    "image_token_id": 151655,
    "intermediate_size": 8960,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2_vl",
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"},
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "video_token_id": 151656,
    "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16, "patch_size": 14},
    "vision_end_token_id": 151653,
    "vision_start_token_id": 151652,
    "vocab_size": 151936,
}
"""Of Qwen2-VL-2B."""
QWEN3_VL: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 151655,
    "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False,
        "bos_token_id": 151643,
        "dtype": "bfloat16",
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    "tie_word_embeddings": True,
    "video_token_id": 151656,
    "vision_config": {
        "deepstack_visual_indexes": [5, 11, 17], "depth": 24, "hidden_size": 1024, "intermediate_size": 4096,
        "num_heads": 16, "num_position_embeddings": 2304, "out_hidden_size": 2560, "patch_size": 16,
    },
}  # fmt: skip
"""Of Qwen3-VL-4B."""
INTERNVL: dict[str, Any] = {
    "architectures": ["InternVLForConditionalGeneration"],
    "image_token_id": 151667,
    "model_type": "internvl",
    "text_config": {
        "bos_token_id": 151643, "eos_token_id": 151645, "hidden_size": 896, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "torch_dtype": "bfloat16",
        "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}, "vocab_size": 151674,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1024, "image_size": [448, 448], "num_hidden_layers": 24, "patch_size": [14, 14]},
}  # fmt: skip
"""Of InternVL3-1B."""
OWN = ("architectures", "model_type", "vision_config", "image_token_id", "video_token_id", "torch_dtype")


def load(folder: Path, fields: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(fields))
    return load_model_config(folder)


def decoder_of(fields: dict[str, Any]) -> DecoderSpec:
    return FAMILIES[fields["architectures"][0]].decoder(RawConfig(fields))


def attention_of(fields: dict[str, Any]) -> AttentionSpec:
    return decoder_of(fields).layers[0].grouped_attention


def nested(**outer: Any) -> dict[str, Any]:
    """:data:`QWEN2_VL` as transformers 5 saves it."""
    text = {name: value for name, value in QWEN2_VL.items() if name not in OWN}
    del text["rope_scaling"], text["rope_theta"], text["tie_word_embeddings"]
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    text["layer_types"] = ["full_attention"] * 28
    fields = {name: QWEN2_VL[name] for name in OWN}
    return {**fields, "text_config": text, "tie_word_embeddings": True, **outer}


def test_qwen2_vl(tmp_path: Path) -> None:
    flat = load(tmp_path, QWEN2_VL)
    spec = flat.decoder
    assert isinstance(spec, DecoderSpec)
    attention = attention_of(QWEN2_VL)
    assert attention.rope == RopeSpec(1e6, 128, sections=(16, 24, 24))
    assert (attention.qkv_bias, attention.output_bias, attention.head_norm) == (True, False, None)
    assert (len(spec.layers), spec.tied, spec.max_positions, attention.window) == (28, True, 32768, 0)
    assert (flat.dtype, flat.eos_token_ids, flat.bos_token_id) == ("bfloat16", (151645,), 151643)
    assert flat.vision is not None
    assert (flat.vision.image_token, flat.vision.hidden_size) == (151655, 1536)
    assert load(tmp_path, nested()) == flat


def test_qwen3_vl(tmp_path: Path) -> None:
    config = load(tmp_path, QWEN3_VL)
    attention = attention_of(QWEN3_VL)
    assert attention.rope == RopeSpec(5e6, 128, sections=(24, 20, 20), interleaved=True)
    assert attention.head_norm is not None
    assert not attention.qkv_bias
    assert (config.dtype, config.eos_token_ids, config.bos_token_id) == ("bfloat16", (151645,), 151643)
    assert config.decoder.tied
    assert config.vision is not None
    assert config.vision.levels == 3


def test_internvl(tmp_path: Path) -> None:
    config = load(tmp_path, INTERNVL)
    attention = attention_of(INTERNVL)
    assert attention.rope == RopeSpec(1e6, 64)
    assert attention.qkv_bias
    assert (config.dtype, config.eos_token_ids, config.decoder.tied) == ("bfloat16", (151645,), False)
    assert config.vision is not None
    assert config.vision.image_token == 151667


def test_axes_of_pairs() -> None:
    assert RopeSpec(1e4, 16).axes() is None
    assert RopeSpec(1e4, 16, sections=(2, 3, 3)).axes() == (0, 0, 1, 1, 1, 2, 2, 2)
    assert RopeSpec(1e4, 16, sections=(4, 2, 2), interleaved=True).axes() == (0, 1, 2, 0, 1, 2, 0, 0)
    assert RopeSpec(1e4, 16, sections=(3, 4, 1), interleaved=True).axes() == (0, 1, 2, 0, 1, 0, 0, 1)
    with pytest.raises(ValueError, match=r"sections \[1, 2, 3\] do not add up to 8 pairs"):
        RopeSpec(1e4, 16, sections=(1, 2, 3))


@pytest.mark.parametrize("interleaved", [False, True])
def test_equal_axes_turn_as_one(interleaved: bool) -> None:
    """Bit by bit; and what each axis turns is turned by no other."""
    table = RotaryTable(RopeSpec(1e4, 16, None, "halves", (3, 3, 2), interleaved), 16, 64, torch.device("cpu"))
    positions = torch.randint(0, 64, (40,), generator=torch.Generator().manual_seed(0))
    plain, equal = table(positions), table(positions, positions.expand(3, -1))
    assert torch.equal(plain.cos, equal.cos)
    assert torch.equal(plain.sin, equal.sin)
    axes = torch.tensor(RopeSpec(1e4, 16, sections=(3, 3, 2), interleaved=interleaved).axes())
    for axis in range(3):
        moved = positions.expand(3, -1).clone()
        moved[axis] = (moved[axis] + 1) % 64
        assert torch.equal((table(positions, moved).sin != plain.sin).all(0), axes == axis)


def test_yarn_has_sections_too() -> None:
    """As Qwen2-VL's card says for long texts."""
    scaling = {
        "type": "yarn", "mrope_section": [16, 24, 24], "factor": 4, "original_max_position_embeddings": 32768,
    }  # fmt: skip
    rope = attention_of({**QWEN2_VL, "rope_scaling": scaling}).rope
    assert rope is not None
    assert rope.sections == (16, 24, 24)
    assert isinstance(rope.scaling, YarnScaling)


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(True, None, True), (False, None, False), (None, True, True), (None, None, False), (False, True, True)],
)
def test_tied_by_either_configuration(outer: bool | None, inner: bool | None, tied: bool) -> None:
    fields = nested(tie_word_embeddings=outer)
    fields["text_config"]["tie_word_embeddings"] = inner
    assert decoder_of(fields).tied is tied


@pytest.mark.parametrize(("outer", "inner", "tied"), [(True, False, True), (None, True, True), (False, True, False)])
def test_the_outer_configuration_says_whether_internvl_is_tied(outer: bool | None, inner: bool, tied: bool) -> None:
    text = {**INTERNVL["text_config"], "tie_word_embeddings": inner}
    assert decoder_of({**INTERNVL, "text_config": text, "tie_word_embeddings": outer}).tied is tied


def test_defaults_are_transformers_own() -> None:
    """Of fields that old files lack."""
    bare = {name: value for name, value in QWEN2_VL.items() if name not in ("rms_norm_eps", "rope_theta")}
    layer = decoder_of({**bare, "rope_scaling": {"type": "mrope"}}).layers[0]
    assert layer.mlp_norm is not None
    assert layer.mlp_norm.eps == 1e-5
    assert layer.attention.rope == RopeSpec(1e6, 128, sections=(16, 24, 24))


@pytest.mark.parametrize(
    ("change", "error", "reason"),
    [
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24]}}, ValueError, "three whole numbers"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 23]}}, ValueError, "add up to 64"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [70, -3, -3]}}, ValueError, "add up to 64"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": "16"}}, ValueError, "not '16'"),
        ({"rope_scaling": {"type": "mrope", "mrope_interleaved": True}}, UnsupportedModelError, "mrope_interleaved"),
        ({"rope_scaling": {"type": "unheard"}}, UnsupportedModelError, "rope scaling 'unheard'"),
        ({"text_config": [1]}, ValueError, "'text_config' must be a JSON object"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        decoder_of({**QWEN2_VL, **change})


def test_text_models_of_internvl_that_are_not_computed_are_named(tmp_path: Path) -> None:
    fields = {**INTERNVL, "text_config": {**INTERNVL["text_config"], "model_type": "gpt_oss"}}
    with pytest.raises(UnsupportedModelError, match=r"a text model of kind 'gpt_oss' .* llama, qwen2, qwen3"):
        load(tmp_path, fields)


def test_plain_models_take_no_mrope(tmp_path: Path) -> None:
    fields = {**QWEN2_VL, "architectures": ["Qwen2ForCausalLM"]}
    with pytest.raises(UnsupportedModelError, match="rope scaling 'mrope' is not supported"):
        load(tmp_path, fields)


def test_a_tower_of_another_width_is_refused(tmp_path: Path) -> None:
    vision = {**QWEN2_VL["vision_config"], "hidden_size": 2048}
    with pytest.raises(ModelFilesError, match="makes embeddings of 2048, the text model takes 1536"):
        load(tmp_path, {**QWEN2_VL, "vision_config": vision})


def test_embeddings_need_no_tower(tmp_path: Path) -> None:
    load(tmp_path, QWEN2_VL)
    assert load_model_config(tmp_path, "embed").vision is None


def test_pixels_become_numbers_as_the_folder_says(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.25, 0.75]}')
    vision = load(tmp_path, QWEN2_VL).vision
    assert vision is not None
    assert vision.mean == (0.5, 0.25, 0.75)
    (tmp_path / "preprocessor_config.json").write_text('{"image_mean": 0.5, "image_std": [1, 1, 1]}')
    vision = load(tmp_path, QWEN2_VL).vision
    assert vision is not None
    assert vision.mean == (0.5, 0.5, 0.5)
    # as transformers: it comes before the other
    (tmp_path / "processor_config.json").write_text('{"image_processor": {"image_std": [0.5, 0.25, 0.75]}}')
    vision = load(tmp_path, QWEN2_VL).vision
    assert vision is not None
    assert vision.std == (0.5, 0.25, 0.75)


def test_transformers_modules_do_not_serve_them(tmp_path: Path) -> None:
    load(tmp_path, QWEN2_VL)
    with pytest.raises(UnsupportedModelError, match="leave out --model_impl transformers"):
        read_model_config(tmp_path, "transformers")
