"""Normalisation, gate, rotation and cache write against their formulas."""

from __future__ import annotations

import torch

from blade_llm.kernels.activate import activate
from blade_llm.kernels.rms_norm import add_rms_norm, rms_norm
from blade_llm.kernels.rope_write_kv import rope_write_kv


def test_rms_norm() -> None:
    x, weight = torch.randn(5, 48) * 3, torch.rand(48) + 0.5
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight, 1e-3).double(), expected, atol=1e-6, rtol=1e-5)


def test_rms_norm_takes_statistics_in_fp32() -> None:
    """The sum of squares of these does not fit into fp16."""
    x = torch.full((2, 64), 300.0, dtype=torch.float16)
    torch.testing.assert_close(rms_norm(x, torch.ones(64).half(), 1e-6), torch.ones(2, 64).half())


def test_add_rms_norm_returns_the_sum_too() -> None:
    x, residual, weight = torch.randn(5, 48), torch.randn(5, 48), torch.rand(48)
    total = x + residual
    normed, summed = add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(summed, total)
    torch.testing.assert_close(normed, rms_norm(total, weight, 1e-6))


def test_silu_as_a_gate() -> None:
    gate, up = torch.randn(7, 12), torch.randn(7, 12)
    expected = gate / (1 + (-gate).exp()) * up
    torch.testing.assert_close(activate(torch.cat((gate, up), -1), "silu", gated=True), expected)


def test_rope_write_kv_rotates_pairs_and_fills_only_its_slots() -> None:
    heads, kv_heads, dim = 4, 2, 8
    qkv = torch.randn(3, (heads + 2 * kv_heads) * dim)
    angles = torch.randn(3, dim // 2)
    slot_mapping = torch.tensor([17, 3, 40])
    k_cache, v_cache = torch.zeros(3, 16, kv_heads, dim), torch.zeros(3, 16, kv_heads, dim)
    q = rope_write_kv(qkv.clone(), angles.cos(), angles.sin(), slot_mapping, k_cache, v_cache, heads)

    all_heads = qkv.view(3, -1, dim)
    pairs = torch.complex(all_heads[..., : dim // 2], all_heads[..., dim // 2 :])
    turned = pairs * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    rotated = torch.cat((turned.real, turned.imag), -1)
    torch.testing.assert_close(q, rotated[:, :heads])
    torch.testing.assert_close(k_cache.flatten(0, 1)[slot_mapping], rotated[:, heads : heads + kv_heads])
    torch.testing.assert_close(v_cache.flatten(0, 1)[slot_mapping], all_heads[:, heads + kv_heads :])
    untouched = torch.ones(48, dtype=torch.bool).index_fill_(0, slot_mapping, False)
    assert not k_cache.flatten(0, 1)[untouched].any()
    assert not v_cache.flatten(0, 1)[untouched].any()
