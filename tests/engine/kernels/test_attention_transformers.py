"""Options of attention against the attention of transformers' models that have them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from engine_support.native_isa import needs_native

from blade_llm.kernels.paged_attention import PLAIN, AttentionVariant, RaggedBatch, native
from blade_llm.kernels.paged_attention import torch as reference

HEADS, KV_HEADS, DIM, LENGTH, BLOCK = 8, 2, 32, 45, 16
SCALE = 0.3


def inputs(kv_heads: int = KV_HEADS, v_dim: int = DIM) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries, keys and values of one sequence: [1, heads, LENGTH, dim]."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((HEADS, DIM), (kv_heads, DIM), (kv_heads, v_dim))
    q, k, v = (torch.randn(1, heads, LENGTH, dim, generator=generator) for heads, dim in shapes)
    return q, k, v


def causal_mask(window: int = 0) -> torch.Tensor:
    """[1, 1, LENGTH, LENGTH], additive."""
    at, positions = torch.arange(LENGTH).unsqueeze(1), torch.arange(LENGTH)
    hidden = (positions > at) | ((positions <= at - window) if window else torch.zeros(1, dtype=torch.bool))
    return torch.zeros(LENGTH, LENGTH).masked_fill(hidden, float("-inf"))[None, None]


@pytest.fixture(params=["torch", pytest.param("native", marks=needs_native)])
def ours(request: pytest.FixtureRequest) -> Callable[..., torch.Tensor]:
    """Attention of the last 20 tokens over the paged cache, as a chunk of 19 and a decode."""
    module = {"torch": reference, "native": native}[request.param]

    def run(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int = 0, variant: AttentionVariant = PLAIN
    ) -> torch.Tensor:
        caches = [torch.zeros(3, BLOCK, each.shape[1], each.shape[3]) for each in (k, v)]
        for cache, each in zip(caches, (k, v), strict=True):
            cache.view(-1, *cache.shape[2:])[:LENGTH] = each[0].transpose(0, 1)
        table, slot = torch.arange(3, dtype=torch.int32).view(1, 3), torch.zeros(1, dtype=torch.int64)
        out = []
        for count, length in ((19, LENGTH - 1), (1, LENGTH)):
            batch = RaggedBatch.of(slot, [count], [length])
            step = module.prepare(batch, table, caches[0], HEADS, False)
            new = q[0, :, length - count : length].transpose(0, 1).contiguous()
            out.append(module.paged_attention(new, *caches, step, SCALE, window, variant))
        return torch.cat(out)

    return run


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """``expected``: [1, LENGTH, heads, dim]."""
    torch.testing.assert_close(actual, expected[0, -20:].flatten(1), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("window", [0, 7])
def test_soft_cap_of_gemma2(ours: Callable[..., torch.Tensor], window: int) -> None:
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    q, k, v = inputs()
    module = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, training=False, head_dim=DIM)
    expected, _ = eager_attention_forward(module, q, k, v, causal_mask(window), scaling=SCALE, softcap=2.0)
    check(ours(q, k, v, window, AttentionVariant(softcap=2.0)), expected)


def test_sinks_of_gpt_oss(ours: Callable[..., torch.Tensor]) -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    q, k, v = inputs()
    sinks = torch.linspace(-2.0, 3.0, HEADS)
    module = SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, training=False, sinks=sinks)
    expected, _ = eager_attention_forward(module, q, k, v, causal_mask(), scaling=SCALE)
    check(ours(q, k, v, 0, AttentionVariant(sinks=sinks)), expected)


def test_slopes_of_bloom(ours: Callable[..., torch.Tensor]) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    q, k, v = inputs(HEADS)
    alibi = build_alibi_tensor(torch.ones(1, LENGTH), HEADS, torch.float32)  # [heads, 1, LENGTH]
    weights = (q @ k.transpose(2, 3) * SCALE + alibi + causal_mask()).softmax(-1)
    slopes = alibi[:, 0, 1].clone()
    check(ours(q, k, v, 0, AttentionVariant(slopes=slopes)), (weights @ v).transpose(1, 2))


def test_widths_of_deepseek_v2(ours: Callable[..., torch.Tensor]) -> None:
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import eager_attention_forward

    q, k, v = inputs(HEADS, v_dim=24)
    module = SimpleNamespace(num_key_value_groups=1, training=False)
    expected, _ = eager_attention_forward(module, q, k, v, causal_mask(), scaling=SCALE)
    check(ours(q, k, v), expected)


def test_absorbed_latent_attention_is_that_of_full_keys_and_values(ours: Callable[..., torch.Tensor]) -> None:
    """MLA (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values made from a latent vector, and queries that
    took over the matrix of keys, over the latent vectors themselves."""
    generator = torch.Generator().manual_seed(4)
    latent, rotated, key_dim, v_dim = 24, 8, 16, 12

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.5

    cache, of_keys, of_values = (
        random(LENGTH, latent + rotated),
        random(HEADS, key_dim, latent),
        random(HEADS, v_dim, latent),
    )
    plain, turned = random(HEADS, LENGTH, key_dim), random(HEADS, LENGTH, rotated)
    keys = torch.cat((cache[:, :latent] @ of_keys.mT, cache[:, latent:].expand(HEADS, -1, -1)), 2)
    scores = torch.cat((plain, turned), 2) @ keys.mT * SCALE + causal_mask()[0]
    expected = scores.softmax(-1) @ (cache[:, :latent] @ of_values.mT)

    absorbed = torch.cat((plain @ of_keys, turned), 2)
    over_latents = ours(absorbed[None], cache[None, None], cache[None, None, :, :latent]).view(20, HEADS, latent)
    actual = torch.einsum("thl,hvl->thv", over_latents, of_values)
    check(actual.flatten(1), expected.transpose(0, 1)[None])
