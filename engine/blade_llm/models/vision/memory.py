"""Bytes of a vision tower and of what it computes, from its spec alone. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from blade_llm.models.dtypes import DTYPE_BYTES, DTypeName
from blade_llm.models.vision.geometry import MAX_KEYS, MAX_PIECE
from blade_llm.models.vision.names import vision_tensors
from blade_llm.spec.vision.tower import Grid, VisionSpec


def tower_bytes(spec: VisionSpec, dtype: DTypeName) -> int:
    """Estimate of the bytes of a tower's weights."""
    tensors = vision_tensors(spec)
    return (tensors.linear_size + tensors.other_size) * DTYPE_BYTES[dtype]


def state_bytes(spec: VisionSpec, dtype: DTypeName, grids: Sequence[Grid]) -> int:
    """Bytes that a batch of images with these grids takes from its beginning to its end: pixels, hidden states,
    queries, keys and values of a layer, angles and embeddings."""
    element = DTYPE_BYTES[dtype]
    total = 0
    for grid in grids:
        frames, height, width = grid
        patches, rows, count = frames * height * width, spec.rows(grid), spec.count(grid)
        pixels = patches * spec.patch_elements
        total += pixels + 16 * height * width + 8 * count + (8 * patches if spec.class_token else 0)
        total += rows * 4 * spec.width * element + count * spec.embedding_elements * element
        total += 0 if spec.rope_theta is None else 4 * rows * spec.head_dim
    return total


def piece_bytes(spec: VisionSpec, dtype: DTypeName) -> int:
    """Upper estimate of what one piece takes besides, while it is computed."""
    element = DTYPE_BYTES[dtype]
    patches = spec.patch_elements * (1 + 4 + 4 + element) + 5 * 4 * spec.width
    project = (1 + 3) * spec.width * element + 3 * 2 * 4 * spec.width
    inner = (2 if spec.mlp.gated else 1) * spec.mlp.inner + spec.mlp.inner
    attend = (6 * spec.width + inner) * element
    mergers = [spec.merger] if spec.deepstack_merger is None else [spec.merger, spec.deepstack_merger]
    merge = max((2 * spec.merged * spec.width + 2 * each.inner + spec.hidden_size) * element for each in mergers)
    return MAX_PIECE * max(patches, project, attend, merge) + 2 * MAX_KEYS * spec.width * element


def activation_bytes(spec: VisionSpec, dtype: DTypeName, grids: Sequence[Grid]) -> int:
    """Upper estimate of the memory that encoding a batch of images with these grids takes, without the weights."""
    one_head = 2 * max(height * width for _, height, width in grids) * spec.head_dim * DTYPE_BYTES[dtype]
    return state_bytes(spec, dtype, grids) + piece_bytes(spec, dtype) + one_head
