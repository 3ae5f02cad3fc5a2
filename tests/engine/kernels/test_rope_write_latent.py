"""Normalisation, rotation and write of latent vectors: the torch implementation against transformers, and Triton's
against it."""

from __future__ import annotations

import pytest
import torch
from engine_support.triton_interpreter import DEVICE

from blade_llm.kernels.rope_write_latent import torch as reference
from blade_llm.kernels.rope_write_latent import triton as kernel

TOLERANCE = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 2e-6}
TOKENS = 5
SLOTS = [33, 1, 47, 0, 16]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("neighbours", [True, False])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(
    ("heads", "nope", "latent", "rope"), [(16, 128, 512, 64), (5, 24, 96, 8), (40, 16, 32, 48), (1, 2, 4, 2)]
)
def test_triton(heads: int, nope: int, latent: int, rope: int, dtype: torch.dtype, neighbours: bool) -> None:
    """The inputs are parts of one projection; what is not this operator's to write stays as it is."""
    whole = random(TOKENS, heads * (nope + rope) + latent + rope, dtype=dtype)
    queries, compressed = whole.split((heads * (nope + rope), latent + rope), dim=1)
    queries = queries.unflatten(1, (heads, nope + rope))
    angles, norm = random(TOKENS, rope // 2, seed=1), random(latent, dtype=dtype, seed=2)
    slots = torch.tensor(SLOTS, device=DEVICE)
    caches, outs = (
        [torch.full(shape, 7.0, dtype=dtype, device=DEVICE) for _ in range(2)]
        for shape in ((3, 16, 1, latent + rope), (TOKENS, heads, latent + rope))
    )
    before = whole.clone()
    for implementation, cache, out in zip((reference, kernel), caches, outs, strict=True):
        cos, sin = angles.cos(), angles.sin()
        implementation.rope_write_latent(queries, compressed, norm, 1e-5, cos, sin, slots, cache, out, neighbours)
    assert torch.equal(whole, before)
    limit = TOLERANCE[dtype]
    torch.testing.assert_close(caches[1], caches[0], atol=limit, rtol=limit)
    torch.testing.assert_close(outs[1], outs[0], atol=limit, rtol=limit)
    assert bool((outs[1][..., :latent] == 7.0).all())
    untouched = sorted(set(range(48)) - set(SLOTS))
    assert bool((caches[1].view(48, -1)[untouched] == 7.0).all())


@pytest.mark.parametrize("neighbours", [True, False])
def test_rotation_is_that_of_transformers(neighbours: bool) -> None:
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as theirs

    heads, rope, latent = 3, 8, 6
    queries, compressed = random(TOKENS, heads, rope).cpu(), random(TOKENS, latent + rope, seed=1).cpu()
    angles, norm = random(TOKENS, rope // 2, seed=2).cpu(), random(latent, seed=3).cpu()
    rotate = theirs.apply_rotary_pos_emb_interleave if neighbours else theirs.apply_rotary_pos_emb
    both = torch.cat((angles, angles), 1)[None]
    key = compressed[None, None, :, latent:]
    q, k = rotate(queries.transpose(0, 1)[None], key, both.cos(), both.sin())
    rms = theirs.DeepseekV3RMSNorm(latent)
    rms.weight.data = norm
    cache, out = torch.zeros(1, 16, 1, latent + rope), torch.zeros(TOKENS, heads, latent + rope)
    slots = torch.arange(TOKENS)
    arguments = queries, compressed, norm, 1e-6, angles.cos(), angles.sin(), slots, cache, out, neighbours
    reference.rope_write_latent(*arguments)
    torch.testing.assert_close(out[..., latent:], q[0].transpose(0, 1))
    torch.testing.assert_close(cache[0, :TOKENS, 0, latent:], k[0, 0])
    torch.testing.assert_close(cache[0, :TOKENS, 0, :latent], rms(compressed[:, :latent]).detach())


def test_no_tokens_at_all() -> None:
    empty, cache = torch.empty(0, 2, 12, device=DEVICE), torch.ones(1, 16, 1, 24, device=DEVICE)
    out, slots = torch.empty(0, 2, 24, device=DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE)
    angles, compressed = torch.empty(0, 4, device=DEVICE), torch.empty(0, 24, device=DEVICE)
    for implementation in (reference, kernel):
        norm = torch.ones(16, device=DEVICE)
        implementation.rope_write_latent(empty, compressed, norm, 1e-6, angles, angles, slots, cache, out)
    assert bool((cache == 1.0).all())
