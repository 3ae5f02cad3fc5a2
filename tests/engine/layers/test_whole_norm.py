"""Norms of all queries of a token together, and of all keys, where ranks divide the heads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from engine_support.shards import owned_once
from engine_support.thread_ranks import thread_groups
from torch import Tensor

from blade_llm.layers.whole_norm import normalise_whole_heads

HEADS, KV_HEADS, DIM, TOKENS, EPS = 8, 2, 16, 5, 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_ranks_normalise_as_olmo2_does(size: int, dtype: torch.dtype) -> None:
    """Heads of very different sizes, so that no rank could do it by itself; key heads that several ranks have."""
    from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

    torch.manual_seed(size)
    widths = HEADS * DIM, KV_HEADS * DIM
    norms = [Olmo2RMSNorm(width, eps=EPS).to(dtype) for width in widths]
    for norm in norms:
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    queries, keys, values = (
        (torch.randn(TOKENS, count, DIM) * torch.logspace(-2, 1, count)[:, None]).to(dtype)
        for count in (HEADS, KV_HEADS, KV_HEADS)
    )
    with torch.no_grad():
        expected = [norm(part.flatten(1)) for norm, part in zip(norms, (queries, keys), strict=True)]
    sharing = max(1, size // KV_HEADS)
    own_queries = queries.flatten(1).chunk(size, 1)
    own_weights = norms[0].weight.data.chunk(size)

    def of_keys(part: Tensor, rank: int) -> Tensor:
        return part.chunk(min(size, KV_HEADS), dim=-1)[rank // sharing]

    def normalise(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        own = own_queries[rank], of_keys(keys.flatten(1), rank), of_keys(values.flatten(1), rank)
        weights = own_weights[rank], of_keys(norms[1].weight.data, rank)
        normed = normalise_whole_heads(torch.cat(own, 1), *weights, EPS, groups[rank])
        found = normed.split([each.shape[1] for each in own], dim=1)
        assert torch.equal(found[2], own[2])
        return found[0], found[1], found[2]

    groups = thread_groups(size)
    with ThreadPoolExecutor(size) as pool:
        ranks = list(pool.map(normalise, range(size)))
    close = {"atol": 1e-6, "rtol": 1e-6} if dtype == torch.float32 else {"atol": 1e-3, "rtol": 8e-3}
    torch.testing.assert_close(torch.cat([rank[0] for rank in ranks], 1), expected[0], **close)
    torch.testing.assert_close(torch.cat(owned_once([rank[1] for rank in ranks], sharing), 1), expected[1], **close)
