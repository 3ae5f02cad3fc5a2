"""A random model of Qwen2-VL-2B's shape, its engine, and random pictures for both it and transformers."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from blade_llm.config import EngineConfig
from blade_llm.engine.build import build_core
from blade_llm.engine.core import EngineCore
from blade_llm.spec.vision.images import CLIP_MEAN, CLIP_STD, ImagePixels, ImageSpan

PATCH: Final = 14
MERGE: Final = 2
TOWER_LAYERS: Final = 32
"""Of Qwen2-VL-2B."""
TEXT_LAYERS: Final = 4
"""Of 28: what is measured is how pictures are encoded. A step of decodes is shorter for it, and leaves less room."""
BEGIN, END, IMAGE, VIDEO = 151652, 151653, 151655, 151656
_VISION: Final[dict[str, Any]] = {
    "embed_dim": 1280,
    "num_heads": 16,
    "mlp_ratio": 4,
    "hidden_size": 1536,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "temporal_patch_size": 2,
}
_TEXT: Final[dict[str, Any]] = {
    "vocab_size": 151_936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    "bos_token_id": 151_643,
    "eos_token_id": 151_645,
}
_numbers = itertools.count()


@dataclass
class Sides:
    """The same weights in both."""

    core: EngineCore
    peer: Any
    """transformers' model; None where nobody asked for it."""


def build(tower_layers: int, threads: int, *, with_peer: bool = False) -> Sides:
    """Both in bf16. The model's folder is gone afterwards."""
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen2VLConfig(
        vision_config={**_VISION, "depth": tower_layers},
        text_config={**_TEXT, "num_hidden_layers": TEXT_LAYERS},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=BEGIN,
        vision_end_token_id=END,
        tie_word_embeddings=True,
    )
    family: Any = transformers.Qwen2VLForConditionalGeneration
    peer = family._from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    with TemporaryDirectory() as folder:
        peer.save_pretrained(folder)
        core = build_core(
            EngineConfig(
                model=folder,
                served_names=("m",),
                dtype="bfloat16",
                num_threads=threads,
                max_num_seqs=32,
                max_model_len=32_768,  # streams of text go on until the last picture is done
                kv_cache_bytes=2 << 30,
            )
        )
    return Sides(core, peer if with_peer else None)


def picture(side: int, seed: int) -> ImagePixels:
    """Random pixels of a square. Equal seeds have equal pixels, but no two pictures the same digest: nothing is found
    in a cache unless it is the same object."""
    shape, grid = (1, side, side, 3), (1, side // PATCH, side // PATCH)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8).tobytes()
    return ImagePixels(hashlib.sha256(str(next(_numbers)).encode()).digest(), grid, shape, pixels)


def tokens_of(image: ImagePixels) -> int:
    """Image tokens."""
    frames, rows, columns = image.grid
    return frames * rows * columns // MERGE**2


def prompt_of(image: ImagePixels, before: list[int], question: list[int]) -> tuple[list[int], ImageSpan]:
    """Token ids of text, a picture and a question."""
    count = tokens_of(image)
    tokens = [*before, BEGIN, *[IMAGE] * count, END, *question]
    return tokens, ImageSpan(len(before) + 1, count, image.digest, image.grid)


def patches_of(image: ImagePixels) -> Tensor:
    """transformers' ``pixel_values``: [patches, 3 * 2 * 14 * 14] fp32, the patches of a token beside each other."""
    _, rows, columns = image.grid
    pixels = torch.frombuffer(bytearray(image.pixels), dtype=torch.uint8).view(image.shape[1:]).float() / 255
    pixels = (pixels - torch.tensor(CLIP_MEAN)) / torch.tensor(CLIP_STD)
    split = pixels.view(rows // MERGE, MERGE, PATCH, columns // MERGE, MERGE, PATCH, 3)
    ordered = split.permute(0, 3, 1, 4, 6, 2, 5).unsqueeze(5)  # [.., 3, 1, 14, 14]
    return ordered.expand(-1, -1, -1, -1, -1, 2, -1, -1).reshape(rows * columns, -1)
