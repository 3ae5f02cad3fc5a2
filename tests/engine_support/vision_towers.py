"""Small random models with vision towers, the images they get, and what transformers makes of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from engine_support.normalise import normalised_patches, normalised_pixels
from examples.families.weights import randomize

from blade_llm.models.raw_config import RawConfig
from blade_llm.models.vision.config import read_vision
from blade_llm.models.vision.tower import VisionTower
from blade_llm.spec.vision.images import ImagePixels
from blade_llm.spec.vision.tower import Grid, VisionSpec
from blade_llm.weights.vision import load_tower

TEXT: Final[dict[str, Any]] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
QWEN2: Final[dict[str, Any]] = {
    "depth": 3,
    "embed_dim": 40,
    "num_heads": 2,
    "mlp_ratio": 3,
    "hidden_size": 48,
    "patch_size": 4,
}
QWEN25: Final[dict[str, Any]] = {
    "depth": 4,
    "hidden_size": 40,
    "num_heads": 2,
    "intermediate_size": 52,
    "out_hidden_size": 48,
    "patch_size": 4,
    "window_size": 28,
    "fullatt_block_indexes": [1, 3],
}
"""Windows of 3 x 3 embeddings."""
QWEN3: Final[dict[str, Any]] = {
    "depth": 4,
    "hidden_size": 40,
    "num_heads": 2,
    "intermediate_size": 72,
    "out_hidden_size": 48,
    "patch_size": 4,
    "num_position_embeddings": 49,
    "deepstack_visual_indexes": [0, 2],
}
INTERNVL: Final[dict[str, Any]] = {
    "num_hidden_layers": 3,
    "hidden_size": 40,
    "num_attention_heads": 2,
    "intermediate_size": 72,
    "image_size": [24, 24],
    "patch_size": [4, 4],
}
ROWS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "qwen2_vl": ("Qwen2VL", QWEN2),
    "qwen2_5_vl": ("Qwen2_5_VL", QWEN25),
    "qwen3_vl": ("Qwen3VL", QWEN3),
    "internvl": ("InternVL", INTERNVL),
    "internvl-biased": ("InternVL", {**INTERNVL, "attention_bias": True, "norm_type": "rms_norm"}),
    "qwen2_5_vl-plain": ("Qwen2_5_VL", {**QWEN25, "fullatt_block_indexes": [], "window_size": 16}),
    "qwen3_vl-flat": ("Qwen3VL", {**QWEN3, "deepstack_visual_indexes": []}),
}
"""Names of transformers' classes, and what the configuration has below ``vision_config``."""


def save_model(folder: Path, row: str, dtype: torch.dtype = torch.float32) -> Any:
    """Save a random model and return it as transformers computes it, in ``dtype``."""
    import transformers

    name, fields = ROWS[row]
    torch.manual_seed(20240607)
    config = getattr(transformers, f"{name}Config")(vision_config=dict(fields), text_config=dict(TEXT))
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    randomize(model)
    for parameter_name, parameter in model.named_parameters():
        if "lambda" in parameter_name:
            torch.nn.init.uniform_(parameter, 0.3, 1.2)
    model.to(dtype).save_pretrained(folder)
    return model.eval()


def read_spec(reference: Any) -> VisionSpec:
    """The tower of transformers' model."""
    spec = read_vision(RawConfig(reference.config.to_dict()), {})
    assert spec is not None
    return spec


def open_tower(folder: Path, spec: VisionSpec, dtype: torch.dtype = torch.float32) -> VisionTower:
    """The tower of a folder, on the CPU."""
    return load_tower(folder, spec, device=torch.device("cpu"), dtype=dtype)


def random_pixels(spec: VisionSpec, grid: Grid, seed: int, frames: int | None = None) -> ImagePixels:
    """A random image with this grid, of one frame where not more are said."""
    _, height, width = grid
    side = spec.patch_size
    shape = (frames or grid[0], height * side, width * side, 3)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8).tobytes()
    return ImagePixels(hashlib.sha256(pixels).digest(), grid, shape, pixels)


@torch.no_grad()
def expected(reference: Any, spec: VisionSpec, images: Sequence[ImagePixels]) -> list[torch.Tensor]:
    """What transformers makes of images, all in one batch: [1 + levels, count, hidden] each."""
    model, dtype = reference.model, reference.dtype
    counts = [spec.count(image.grid) for image in images]
    if spec.family == "internvl":
        tiles = torch.from_numpy(np.concatenate([normalised_pixels(image, spec) for image in images]))
        found = model.get_image_features(
            pixel_values=tiles.to(dtype), vision_feature_layer=-1, vision_feature_select_strategy="default"
        )
        levels = [found.pooler_output.reshape(-1, spec.hidden_size)]
    else:
        patches = torch.from_numpy(np.concatenate([normalised_patches(image, spec) for image in images]))
        found = model.visual(patches.to(dtype), grid_thw=torch.tensor([image.grid for image in images]))
        levels = [found.pooler_output, *(getattr(found, "deepstack_features", None) or [])]
    return list(torch.stack(levels).split(counts, dim=1))


def encode(tower: VisionTower, images: Sequence[ImagePixels], row_layers: int = 10**9) -> list[torch.Tensor]:
    """What the tower makes of images in one batch, in pieces of so many row-layers."""
    state = tower.begin(images)
    while state.remaining:
        tower.advance(state, row_layers)
    return tower.embeddings(state)
