# ruff: noqa: C408
"""Rows of :mod:`engine_support.families` for models with images: small ones, whose text models are configured as
checkpoints on hubs are and as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine_support.tiny_models import SHAPE
from safetensors.torch import load_file, save_file

QWEN_TOKENS = {"image_token_id": 190, "video_token_id": 191, "vision_start_token_id": 192, "vision_end_token_id": 193}
QWEN2_TOWER = dict(depth=2, embed_dim=32, hidden_size=64, num_heads=4, patch_size=4, mlp_ratio=2)
QWEN2_5_TOWER = dict(
    depth=3, hidden_size=32, out_hidden_size=64, num_heads=4, patch_size=4, intermediate_size=48, window_size=16,
    fullatt_block_indexes=[1], tokens_per_second=2,
)  # fmt: skip
QWEN3_TOWER = dict(
    depth=4, hidden_size=32, out_hidden_size=64, num_heads=4, patch_size=4, intermediate_size=48,
    num_position_embeddings=16, deepstack_visual_indexes=[0, 2],
)  # fmt: skip
INTERNVL_TOWER = dict(
    num_hidden_layers=2, hidden_size=32, num_attention_heads=4, intermediate_size=48, image_size=[16, 16],
    patch_size=[4, 4],
)  # fmt: skip


def text(sections: list[int] | None = None, rope: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A ``text_config``."""
    axes = {} if sections is None else {"mrope_section": sections}
    return {**SHAPE, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **axes, **(rope or {})}, **fields}


def as_published(folder: Path) -> None:
    """All fields beside each other, and a ``rope_scaling`` of the kind ``mrope``, as hubs have Qwen2-VL."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    fields = config.pop("text_config")
    rope = fields.pop("rope_parameters")
    for name in ("model_type", "layer_types"):
        del fields[name]
    scaling = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    fields |= {"rope_theta": rope["rope_theta"], "rope_scaling": scaling, "sliding_window": 32}
    file.write_text(json.dumps({**fields, **config}))


def as_nested(folder: Path) -> None:
    """The names that transformers has in memory, which some tools save."""
    file = folder / "model.safetensors"
    save_file({_nested(name): tensor for name, tensor in load_file(file).items()}, file)


def _nested(name: str) -> str:
    if name.startswith("language_model."):
        return name.replace("language_model.lm_head", "lm_head").replace("language_model.model", "model.language_model")
    if name.startswith("model."):
        return name.replace("model.", "model.language_model.", 1)
    return name if name == "lm_head.weight" else f"model.{name}"


def never_generates_images(model: Any) -> None:
    """Transformers refuses a generated image token, for which it has no image."""
    model.lm_head.weight.data[min(QWEN_TOKENS.values()) : max(QWEN_TOKENS.values()) + 1] = 0


VISION_ROWS: dict[str, dict[str, Any]] = {
    "qwen2-vl": dict(
        family="Qwen2VL",
        shows="three axes of positions, one after the other; flat configuration",
        fields=dict(text_config=text([2, 1, 1]), vision_config=QWEN2_TOWER, **QWEN_TOKENS),
        becomes=("Qwen2VLForConditionalGeneration", as_published),
    ),
    "qwen2-vl-yarn": dict(
        family="Qwen2VL",
        shows="three axes of positions, yarn, tied, windows from a layer on",
        fields=dict(
            text_config=text(
                [1, 2, 1], dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=48),
                use_sliding_window=True, sliding_window=24, max_window_layers=1,
            ),
            vision_config=QWEN2_TOWER, tie_word_embeddings=True, **QWEN_TOKENS,
        ),
    ),
    "qwen2.5-vl": dict(
        family="Qwen2_5_VL",
        shows="three axes of positions, one after the other; nested names",
        fields=dict(text_config=text([1, 1, 2]), vision_config=QWEN2_5_TOWER, **QWEN_TOKENS),
        becomes=("Qwen2_5_VLForConditionalGeneration", as_nested),
    ),
    "qwen3-vl": dict(
        family="Qwen3VL",
        shows="three axes of positions that take turns, normalised heads",
        fields=dict(
            text_config=text([4, 2, 2], {"mrope_interleaved": True}, head_dim=16), vision_config=QWEN3_TOWER,
            **QWEN_TOKENS,
        ),
    ),
    "internvl": dict(
        family="InternVL",
        shows="Qwen2's layers",
        fields=dict(
            text_config=text(model_type="qwen2"), vision_config=INTERNVL_TOWER, image_token_id=190,
            tie_word_embeddings=False,
        ),
    ),
    "internvl-llama": dict(
        family="InternVL",
        shows="Llama's layers, tied; nested names",
        fields=dict(
            text_config=text(model_type="llama", head_dim=16), vision_config=INTERNVL_TOWER, image_token_id=190,
        ),
        becomes=("InternVLForConditionalGeneration", as_nested),
    ),
}  # fmt: skip
"""Fields of each row."""
for _fields in VISION_ROWS.values():
    _fields |= {"model": f"{_fields['family']}ForConditionalGeneration", "shape": {}, "before": never_generates_images}
