"""Paged attention against attention written out, one head at a time."""

from __future__ import annotations

import pytest
import torch

from blade_llm.kernels.paged_attention import RaggedBatch, paged_attention, prepare

BLOCK = 16


def written_out(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, scale: float) -> torch.Tensor:
    """``q``: [new, heads, dim]; ``keys``, ``values``: [length, kv_heads, dim]. fp64."""
    new, heads, _ = q.shape
    share = heads // keys.shape[1]
    hidden = torch.arange(len(keys)) > torch.arange(start, start + new).unsqueeze(1)
    out = torch.empty(q.shape, dtype=torch.float64)
    for head in range(heads):
        scores = q[:, head].double() @ keys[:, head // share].double().T * scale
        out[:, head] = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ values[:, head // share].double()
    return out.flatten(1)


def run(
    query_lens: list[int], seq_lens: list[int], heads: int, kv_heads: int, dtype: torch.dtype, poison: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Actual and expected output of a batch whose sequences lie in shuffled blocks."""
    generator = torch.Generator().manual_seed(sum(seq_lens))
    dim, scale = 32, 0.17
    blocks_each = [-(-length // BLOCK) for length in seq_lens]
    order = torch.randperm(sum(blocks_each) + 3, generator=generator)
    caches = [torch.randn(len(order), BLOCK, kv_heads, dim, generator=generator).to(dtype) for _ in range(2)]
    rows = torch.randperm(len(seq_lens) + 2, generator=generator)[: len(seq_lens)]
    table = torch.zeros(len(seq_lens) + 2, max(blocks_each) + 1, dtype=torch.int32)
    q = torch.randn(sum(query_lens), heads, dim, generator=generator).to(dtype)
    expected, used, token = [], 0, 0
    for row, count, length, blocks in zip(rows.tolist(), query_lens, seq_lens, blocks_each, strict=True):
        table[row, :blocks] = order[used : used + blocks].int()
        keys, values = (cache[table[row, :blocks].long()].flatten(0, 1) for cache in caches)
        expected.append(written_out(q[token : token + count], keys[:length], values[:length], length - count, scale))
        keys[length:], values[length:] = poison, poison
        for cache, filled in zip(caches, (keys, values), strict=True):
            cache[table[row, :blocks].long()] = filled.unflatten(0, (blocks, BLOCK))
        used, token = used + blocks, token + count
    prepared = prepare(RaggedBatch.of(rows, query_lens, seq_lens), table, caches[0], heads)
    return paged_attention(q, caches[0], caches[1], prepared, scale), torch.cat(expected)


BATCHES = {
    "one decode": ([1], [37]),
    "equal decodes": ([1] * 5, [48] * 5),
    "decodes of all lengths": ([1] * 9, [1, 2, 15, 16, 17, 90, 300, 301, 700]),
    "one prefill": ([75], [75]),
    "chunk after a prefix": ([33], [120]),
    "several chunks of queries": ([600], [650]),
    "mixture": ([1, 40, 1, 1, 7, 300, 1], [400, 40, 3, 64, 100, 300, 17]),
}


@pytest.mark.parametrize("heads", [(4, 4), (14, 2), (6, 1)], ids=str)
@pytest.mark.parametrize("batch", BATCHES.values(), ids=list(BATCHES))
def test_matches_attention_written_out(batch: tuple[list[int], list[int]], heads: tuple[int, int]) -> None:
    actual, expected = run(*batch, *heads, torch.float32)
    torch.testing.assert_close(actual.double(), expected, atol=2e-5, rtol=1e-5)


def test_bf16_is_within_its_noise() -> None:
    actual, expected = run(*BATCHES["mixture"], 14, 2, torch.bfloat16)
    assert (actual.double() - expected).abs().max() < 0.03


def test_stale_slots_do_not_matter() -> None:
    """What an earlier request left beyond a sequence's end must not show, however large."""
    actual, expected = run(*BATCHES["mixture"], 4, 2, torch.float32, poison=1e4)
    torch.testing.assert_close(actual.double(), expected, atol=2e-5, rtol=1e-5)
