"""Normalisation, rotation and write of latent vectors in Triton: of each token one program writes its row of the cache,
the others rotate some heads of its queries each."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_ELEMENTS = 1024
"""Elements of half of the rotated dimensions that a program takes together, about."""


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _rope_write_latent_kernel(
    queries_ptr,
    compressed_ptr,
    norm_ptr,
    cos_ptr,
    sin_ptr,
    slots_ptr,
    cache_ptr,
    out_ptr,
    eps,
    HEADS: tl.constexpr,
    NOPE: tl.constexpr,
    LATENT: tl.constexpr,
    HALF: tl.constexpr,
    QUERY_STRIDE: tl.constexpr,
    COMPRESSED_STRIDE: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_LATENT: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    columns = tl.arange(0, BLOCK_HALF)[None, :]
    inside = columns < HALF
    cos = tl.load(cos_ptr + token * HALF + columns, inside, 0.0)
    sin = tl.load(sin_ptr + token * HALF + columns, inside, 0.0)
    first_at = 2 * columns if NEIGHBOURS else columns
    second_at = 2 * columns + 1 if NEIGHBOURS else HALF + columns

    if part == 0:
        at = tl.arange(0, BLOCK_LATENT)
        exists = at < LATENT
        source = compressed_ptr + token * COMPRESSED_STRIDE
        row = cache_ptr + tl.load(slots_ptr + token).to(tl.int64) * (LATENT + 2 * HALF)
        latent = tl.load(source + at, exists, 0.0)
        wide = latent.to(tl.float32)
        wide *= 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / LATENT + eps)
        # Rounded to the storage type before the weight, as in the reference.
        normed = wide.to(latent.dtype).to(tl.float32) * tl.load(norm_ptr + at, exists, 0.0).to(tl.float32)
        tl.store(row + at, normed.to(latent.dtype), exists)
        key_first = tl.load(source + LATENT + first_at, inside, 0.0).to(tl.float32)
        key_second = tl.load(source + LATENT + second_at, inside, 0.0).to(tl.float32)
        tl.store(row + LATENT + columns, (key_first * cos - key_second * sin).to(latent.dtype), inside)
        tl.store(row + LATENT + HALF + columns, (key_second * cos + key_first * sin).to(latent.dtype), inside)
    else:
        heads = (part - 1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)[:, None]
        present = inside & (heads < HEADS)
        query = queries_ptr + token * QUERY_STRIDE + heads * (NOPE + 2 * HALF) + NOPE
        raw = tl.load(query + first_at, present, 0.0)
        first = raw.to(tl.float32)
        second = tl.load(query + second_at, present, 0.0).to(tl.float32)
        target = out_ptr + (token * HEADS + heads) * (LATENT + 2 * HALF) + LATENT + columns
        tl.store(target, (first * cos - second * sin).to(raw.dtype), present)
        tl.store(target + HALF, (second * cos + first * sin).to(raw.dtype), present)


def rope_write_latent(
    queries: Tensor,
    compressed: Tensor,
    norm: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    cache: Tensor,
    out: Tensor,
    neighbours: bool = True,
) -> None:
    tokens, heads, width = queries.shape
    half, latent_dim = cos.shape[1], len(norm)
    if not tokens:
        return
    block_half = triton.next_power_of_2(half)
    block_heads = min(triton.next_power_of_2(heads), max(1, _ELEMENTS // block_half))
    _rope_write_latent_kernel[(tokens, 1 + triton.cdiv(heads, block_heads))](
        queries,
        compressed,
        norm,
        cos,
        sin,
        slot_mapping,
        cache,
        out,
        eps,
        HEADS=heads,
        NOPE=width - 2 * half,
        LATENT=latent_dim,
        HALF=half,
        QUERY_STRIDE=queries.stride(0),
        COMPRESSED_STRIDE=compressed.stride(0),
        BLOCK_HEADS=block_heads,
        BLOCK_LATENT=triton.next_power_of_2(latent_dim),
        BLOCK_HALF=block_half,
        NEIGHBOURS=neighbours,
        num_warps=4,
    )
