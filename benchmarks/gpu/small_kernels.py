"""The operators around attention: norms, rotation, gating, products of few rows, sampling, gathering of inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.case import Case
from benchmarks.gpu.machine import DEVICE, DRY
from benchmarks.gpu.shapes import MODEL
from blade_llm.kernels.activate import torch as gate_reference
from blade_llm.kernels.activate import triton as gate
from blade_llm.kernels.gather_inputs import torch as gather_reference
from blade_llm.kernels.gather_inputs import triton as gather
from blade_llm.kernels.gumbel_argmax import torch as gumbel_reference
from blade_llm.kernels.gumbel_argmax import triton as gumbel
from blade_llm.kernels.linear import triton as products
from blade_llm.kernels.penalties import torch as penalties_reference
from blade_llm.kernels.penalties import triton as penalties
from blade_llm.kernels.rms_norm import torch as norm_reference
from blade_llm.kernels.rms_norm import triton as norm
from blade_llm.kernels.rope_write_kv import torch as rope_reference
from blade_llm.kernels.rope_write_kv import triton as rope
from blade_llm.kernels.top_k_top_p import torch as filter_reference
from blade_llm.kernels.top_k_top_p import triton as filters

BLOCK = 16
BF16_NOISE = 2e-2


def cases() -> Iterator[Case]:
    for rows in (1,) if DRY else (1, 8, 32):
        yield from _products(rows)
    for tokens in (4,) if DRY else (1, 64, 256, 2048):
        yield from _layer(tokens)
    for rows in (2,) if DRY else (1, 64, 256):
        yield from _sampling(rows)
    yield _gather(4 if DRY else 256)


def _random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(sum(shape))).to(dtype)


def _layer(tokens: int) -> Iterator[Case]:
    hidden, dim, heads, kv_heads = MODEL.hidden, MODEL.head_dim, MODEL.heads, MODEL.kv_heads
    x, residual, weight = _random(tokens, hidden), _random(tokens, hidden), _random(hidden)
    x_kept = x.clone()  # the kernel may overwrite it
    yield Case(
        f"add_rms_norm_{tokens}",
        lambda: norm.add_rms_norm(x, residual, weight, 1e-6)[0],
        lambda: norm_reference.add_rms_norm(x_kept.clone(), residual, weight, 1e-6)[0],
        BF16_NOISE,
        bytes=4 * x.nbytes,
    )
    qkv = _random(tokens, (heads + 2 * kv_heads) * dim)
    angles = torch.rand(tokens, dim // 2, device=DEVICE)
    k_cache, v_cache = (torch.zeros(tokens, BLOCK, kv_heads, dim, dtype=torch.bfloat16, device=DEVICE) for _ in "kv")
    slot_mapping = torch.arange(tokens, device=DEVICE) * BLOCK
    arguments = qkv, angles.cos(), angles.sin(), slot_mapping, k_cache, v_cache, heads
    yield Case(
        f"rope_write_kv_{tokens}",
        lambda: rope.rope_write_kv(*arguments),
        lambda: rope_reference.rope_write_kv(*arguments),
        BF16_NOISE,
        bytes=2 * qkv.nbytes,
    )
    gate_up = _random(tokens, 2 * MODEL.inner)
    gate_up_kept = gate_up.clone()
    yield Case(
        f"silu_and_mul_{tokens}",
        lambda: gate.activate(gate_up, "silu", True),
        lambda: gate_reference.activate(gate_up_kept.clone(), "silu", True),
        BF16_NOISE,
        bytes=gate_up.nbytes * 3 // 2,
    )


def _products(rows: int) -> Iterator[Case]:
    """A layer's four matrices."""
    hidden, dim, dtype = MODEL.hidden, MODEL.head_dim, torch.float32 if DRY else torch.bfloat16
    shapes = {
        "qkv": ((MODEL.heads + 2 * MODEL.kv_heads) * dim, hidden),
        "output": (hidden, MODEL.heads * dim),
        "gate_up": (2 * MODEL.inner, hidden),
        "down": (hidden, MODEL.inner),
    }
    for name, (outputs, inputs) in shapes.items():
        x, weight = _random(rows, inputs, dtype=dtype), _random(outputs, inputs, dtype=dtype)
        yield Case(
            f"linear_{name}_{rows}",
            lambda x=x, weight=weight: products.linear(x, weight, None),  # type: ignore[misc]
            lambda x=x, weight=weight: F.linear(x.float(), weight.float()).to(dtype),  # type: ignore[misc]
            BF16_NOISE,
            bytes=weight.nbytes,
            torch_run=lambda x=x, weight=weight: F.linear(x, weight),  # type: ignore[misc]
        )


def _sampling(rows: int) -> Iterator[Case]:
    logits = _random(rows, MODEL.vocabulary, dtype=torch.float32) * 4
    top_k = torch.full((rows,), 50, device=DEVICE)
    top_p = torch.full((rows,), 0.9, device=DEVICE)
    yield Case(
        f"top_k_top_p_{rows}",
        lambda: filters.top_k_top_p_thresholds(logits, top_k, top_p),
        lambda: filter_reference.top_k_top_p_thresholds(logits, top_k, top_p),
        1e-6,
        bytes=logits.nbytes,
    )
    thresholds = torch.full((rows,), float("-inf"), device=DEVICE)
    keys = torch.arange(2 * rows, device=DEVICE).view(rows, 2)
    positions = torch.arange(rows, device=DEVICE)
    yield Case(
        f"gumbel_argmax_{rows}",
        lambda: gumbel.gumbel_argmax(logits, thresholds, keys, positions),
        lambda: gumbel_reference.gumbel_argmax(logits, thresholds, keys, positions),
        0.0,
        bytes=logits.nbytes,
    )
    history = 64 if DRY else 2048
    table = torch.randint(MODEL.vocabulary, (rows, history), device=DEVICE, dtype=torch.int32)
    index = torch.arange(rows, device=DEVICE)
    settings = torch.tensor([[1.1, 0.5, 0.2]] * rows, device=DEVICE)
    raw = logits.bfloat16()
    lengths = torch.full((rows,), history, device=DEVICE)
    yield Case(
        f"penalties_{rows}",
        lambda: penalties.apply_penalties(raw, table, index, lengths // 2, lengths, settings),
        lambda: penalties_reference.apply_penalties(raw, table, index, lengths // 2, lengths, settings),
        1e-5,
        bytes=raw.nbytes * 3 + table.nbytes,
    )


def _gather(sequences: int) -> Case:
    rows = torch.randperm(sequences, device=DEVICE)
    starts = torch.arange(sequences, device=DEVICE) * 3
    query_starts = torch.arange(sequences + 1, device=DEVICE)
    tokens = torch.randint(MODEL.vocabulary, (sequences, 4 * sequences), device=DEVICE, dtype=torch.int32)
    blocks = torch.randint(9999, (sequences, sequences), device=DEVICE, dtype=torch.int32)
    arguments = rows, starts, query_starts, tokens, blocks, BLOCK, sequences, None
    return Case(
        f"gather_inputs_{sequences}",
        lambda: torch.stack([part.long() for part in gather.gather_inputs(*arguments)]),
        lambda: torch.stack([part.long() for part in gather_reference.gather_inputs(*arguments)]),
        0.0,
    )
