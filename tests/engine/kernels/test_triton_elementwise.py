"""Normalisation, gate, and rotation with cache write in Triton against the torch implementations."""

from __future__ import annotations

import pytest
import torch
from engine_support.triton_interpreter import DEVICE

from blade_llm.kernels.rms_norm import torch as rms_reference
from blade_llm.kernels.rms_norm import triton as rms
from blade_llm.kernels.rope_write_kv import torch as rope_reference
from blade_llm.kernels.rope_write_kv import triton as rope

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 2e-6}


def close(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Within one unit of the last place of the type, about."""
    assert result.dtype == expected.dtype
    limit = TOLERANCE[expected.dtype]
    torch.testing.assert_close(result.float(), expected.float(), atol=limit, rtol=limit)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize("hidden", [64, 100, 896, 1000, 3584, 8192])
def test_rms_norm(hidden: int, unit_offset: bool, dtype: torch.dtype) -> None:
    x, weight = random(3, hidden, dtype=dtype) * 3, random(hidden, dtype=dtype, seed=1)
    close(rms.rms_norm(x, weight, 1e-5, unit_offset), rms_reference.rms_norm(x, weight, 1e-5, unit_offset))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [64, 100, 5120])
def test_add_rms_norm(hidden: int, dtype: torch.dtype) -> None:
    x, residual = random(5, hidden, dtype=dtype), random(5, hidden, dtype=dtype, seed=1)
    weight = random(hidden, dtype=dtype, seed=2)
    expected, expected_sum = rms_reference.add_rms_norm(x.clone(), residual, weight, 1e-6)
    before = residual.clone()
    normed, total = rms.add_rms_norm(x.clone(), residual, weight, 1e-6)
    assert torch.equal(total, expected_sum)
    assert torch.equal(residual, before)
    close(normed, expected)


def test_rms_norm_takes_statistics_in_fp32() -> None:
    x = torch.full((2, 64), 300.0, dtype=torch.float16, device=DEVICE)
    close(rms.rms_norm(x, torch.ones_like(x[0]), 1e-6), torch.ones_like(x))


@pytest.mark.parametrize("norm", ["", "qk-norm", "qk-norm, 1 + w"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(1, 1, 64), (14, 2, 64), (5, 5, 80), (6, 2, 96), (28, 4, 128), (8, 1, 256)]
)
def test_rope_write_kv(heads: int, kv_heads: int, dim: int, dtype: torch.dtype, norm: str) -> None:
    tokens = 5
    qkv = random(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    angles = random(tokens, dim // 2, dtype=torch.float32, seed=1)
    slot_mapping = torch.tensor([33, 1, 47, 0, 16], device=DEVICE)
    weights = (
        (random(dim, dtype=dtype, seed=2), random(dim, dtype=dtype, seed=3), 1e-5, "1 + w" in norm) if norm else ()
    )
    caches = [torch.full((2, 3, 16, kv_heads, dim), 7.0, dtype=dtype, device=DEVICE) for _ in range(2)]
    expected = rope_reference.rope_write_kv(
        qkv.clone(), angles.cos(), angles.sin(), slot_mapping, caches[0][0], caches[0][1], heads, *weights
    )
    before = qkv.clone()
    q = rope.rope_write_kv(qkv, angles.cos(), angles.sin(), slot_mapping, caches[1][0], caches[1][1], heads, *weights)
    assert torch.equal(qkv, before)
    close(q, expected)
    close(caches[1], caches[0])
    assert torch.equal(caches[1][1], caches[0][1])


def test_qk_norm_is_that_of_qwen3() -> None:
    """Of the torch implementation: every head by itself, values untouched, as in transformers."""
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    qkv = random(4, (3 + 2) * 32, dtype=torch.float32)
    norms = [Qwen3RMSNorm(32, eps=1e-3) for _ in range(2)]
    for norm in norms:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    heads = qkv.cpu().view(4, 5, 32)
    with torch.no_grad():
        expected = torch.cat((norms[0](heads[:, :3]), norms[1](heads[:, 3:4]), heads[:, 4:]), 1)
    k_cache, v_cache = torch.zeros(1, 4, 1, 32), torch.zeros(1, 4, 1, 32)
    unturned, slot_mapping = torch.ones(4, 16), torch.arange(4)
    q = rope_reference.rope_write_kv(
        qkv.cpu(),
        unturned,
        unturned * 0,
        slot_mapping,
        k_cache,
        v_cache,
        3,
        norms[0].weight.data,
        norms[1].weight.data,
        1e-3,
    )
    torch.testing.assert_close(torch.cat((q, k_cache[0], v_cache[0]), 1), expected)


def test_no_tokens_at_all() -> None:
    empty = torch.empty(0, 64, device=DEVICE)
    assert rms.rms_norm(empty, torch.ones(64, device=DEVICE), 1e-6).shape == (0, 64)
    cache = torch.zeros(1, 16, 1, 16, device=DEVICE)
    slot_mapping = torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert rope.rope_write_kv(empty, empty, empty, slot_mapping, cache, cache.clone(), 2).shape == (0, 2, 16)
