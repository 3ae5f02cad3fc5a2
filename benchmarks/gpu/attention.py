"""Paged attention on the shapes of real models: decodes by batch, prefills by length, chunks, a mixture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.gpu.case import Case
from benchmarks.gpu.machine import DEVICE, DRY
from benchmarks.gpu.shapes import LLAMA, QWEN, Shape
from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.kernels.paged_attention import torch as reference
from blade_llm.kernels.paged_attention import triton as kernels

BLOCK = 16
DTYPE = torch.float32 if DRY else torch.bfloat16
"""The interpreter cannot multiply matrices of bf16."""


@dataclass(frozen=True)
class Step:
    """New tokens and context of each sequence."""

    name: str
    query_lens: list[int]
    seq_lens: list[int]
    window: int = 0
    deterministic: bool = False


def steps() -> Iterator[Step]:
    if DRY:
        yield Step("decode_b2_ctx40", [1] * 2, [40] * 2)
        yield Step("mixed", [1, 20], [40, 50])
        return
    for batch, context in ((1, 1024), (1, 32768), (8, 1024), (64, 1024), (64, 4096), (128, 1024), (256, 1024)):
        yield Step(f"decode_b{batch}_ctx{context}", [1] * batch, [context] * batch)
    lengths = [64 * (1 + index % 32) for index in range(128)]
    yield Step("decode_b128_ragged", [1] * 128, lengths)
    yield Step("decode_b64_ctx4096_window1024", [1] * 64, [4096] * 64, window=1024)
    yield Step("decode_b64_ctx1024_deterministic", [1] * 64, [1024] * 64, deterministic=True)
    yield Step("prefill_1024", [1024], [1024])
    yield Step("prefill_8192", [8192], [8192])
    yield Step("chunk_2048_of_16384", [2048], [16384])
    yield Step("prefill_8192_window1024", [8192], [8192], window=1024)
    yield Step("prefill_8192_deterministic", [8192], [8192], deterministic=True)
    yield Step("mixed_64_decodes_and_1024", [1] * 64 + [1024], [1024] * 65)


def cases() -> Iterator[Case]:
    for shape in (QWEN,) if DRY else (QWEN, LLAMA):
        for step in steps():
            yield attention_case(shape, step)


def attention_case(shape: Shape, step: Step) -> Case:
    heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
    generator = torch.Generator(DEVICE).manual_seed(0)
    blocks = [-(-length // BLOCK) for length in step.seq_lens]

    def random(*size: int) -> Tensor:
        return torch.randn(*size, device=DEVICE, dtype=DTYPE, generator=generator)

    k_cache, v_cache = (random(sum(blocks), BLOCK, kv_heads, dim) for _ in range(2))
    q = random(sum(step.query_lens), heads, dim)
    order = torch.randperm(sum(blocks), device=DEVICE, generator=generator).int()
    table = torch.zeros(len(blocks), max(blocks), dtype=torch.int32, device=DEVICE)
    for row, part in enumerate(order.split(blocks)):
        table[row, : len(part)] = part
    slots = torch.arange(len(blocks), device=DEVICE)
    batch = RaggedBatch.of(slots, step.query_lens, step.seq_lens)
    prepared = kernels.prepare(batch, table, k_cache, heads, step.deterministic)
    plain = reference.prepare(batch, table, k_cache, heads)
    scale = dim**-0.5

    def exact() -> Tensor:
        """Attention in fp32, so that the difference is the kernel's own."""
        keys, values = k_cache.float(), v_cache.float()
        shape_fp32 = reference.prepare(batch, table, keys, heads)
        return reference.paged_attention(q.float(), keys, values, shape_fp32, scale, step.window)

    seen = [min(length, step.window) if step.window else length for length in step.seq_lens]
    pairs = sum(
        _pairs(count, length, step.window) for count, length in zip(step.query_lens, step.seq_lens, strict=True)
    )
    decode = max(step.query_lens) == 1
    return Case(
        f"attention_{shape.name}_{step.name}",
        lambda: kernels.paged_attention(q, k_cache, v_cache, prepared, scale, step.window),
        exact,
        tolerance=2e-2,
        bytes=sum(seen) * 2 * kv_heads * dim * 2 + 2 * q.nbytes if decode else 0,
        flops=0 if decode else 4 * heads * dim * pairs,
        torch_run=lambda: reference.paged_attention(q, k_cache, v_cache, plain, scale, step.window),
    )


def _pairs(count: int, length: int, window: int) -> int:
    """Keys seen by the new tokens together."""
    return sum(min(position + 1, window or position + 1) for position in range(length - count, length))
