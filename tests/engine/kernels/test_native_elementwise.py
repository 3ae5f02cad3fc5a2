"""Native normalisation, gate, rotation and cache write against torch, on each instruction set they differ by."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from engine_support.native_isa import ISAS, limited_to, needs_native

from blade_llm.kernels.rms_norm import native as norm
from blade_llm.kernels.rms_norm import torch as norm_reference
from blade_llm.kernels.rope_write_kv import native as rope
from blade_llm.kernels.rope_write_kv import torch as rope_reference

pytestmark = needs_native

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
SIZES = [(1, 896), (3, 1), (7, 131), (70, 1030)]


@pytest.fixture(params=ISAS[:3], autouse=True)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with limited_to(request.param):
        torch.manual_seed(0)
        yield request.param


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal, but for a result that fp32 noise before the rounding moved to the neighbouring number."""
    assert actual.dtype == expected.dtype
    tolerance = 2e-6 if actual.dtype == torch.float32 else 0.01
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    if actual.dtype != torch.float32:
        assert (actual != expected).float().mean() < 0.01


@DTYPES
@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize(("tokens", "hidden"), SIZES)
def test_rms_norm(dtype: torch.dtype, tokens: int, hidden: int, unit_offset: bool) -> None:
    x, residual = (torch.randn(tokens, hidden).mul(3).to(dtype) for _ in range(2))
    weight = (torch.rand(hidden) + 0.5).to(dtype)
    close(norm.rms_norm(x, weight, 1e-3, unit_offset), norm_reference.rms_norm(x, weight, 1e-3, unit_offset))
    expected = norm_reference.add_rms_norm(x.clone(), residual, weight, 1e-6, unit_offset)
    normed, total = norm.add_rms_norm(x, residual, weight, 1e-6, unit_offset)
    assert torch.equal(total, expected[1])
    close(normed, expected[0])


def test_rms_norm_of_a_view_is_of_the_view() -> None:
    x, weight = torch.randn(4, 64)[:, ::2], torch.rand(32)
    close(norm.rms_norm(x, weight, 1e-6), norm_reference.rms_norm(x, weight, 1e-6))


@DTYPES
@pytest.mark.parametrize("unit_offset", [False, True])
@pytest.mark.parametrize("normalised", [False, True], ids=["plain", "qk_norm"])
@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128, 256])
def test_rope_write_kv(dtype: torch.dtype, normalised: bool, unit_offset: bool, head_dim: int) -> None:
    tokens, heads, kv_heads = 9, 7, 2
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * head_dim).to(dtype)
    angles = torch.randn(tokens, head_dim // 2)
    slot_mapping = torch.randperm(48)[:tokens]
    norms = [(torch.rand(head_dim) + 0.5).to(dtype) if normalised else None for _ in range(2)]
    results = []
    for implementation in (rope, rope_reference):
        caches = [torch.zeros(3, 16, kv_heads, head_dim, dtype=dtype) for _ in range(2)]
        q = implementation.rope_write_kv(
            qkv.clone(), angles.cos(), angles.sin(), slot_mapping, *caches, heads, *norms, 1e-6, unit_offset
        )
        results.append((q, *caches))
    for actual, expected in zip(*results, strict=True):
        close(actual, expected)
