"""The torch implementation of paged attention against attention written out, one head at a time."""

from __future__ import annotations

import pytest
import torch
from engine_support.attention_cases import attention_case
from engine_support.branches import BRANCHES, STEP

from blade_llm.kernels.paged_attention import RaggedBatch
from blade_llm.kernels.paged_attention.torch import paged_attention, prepare


def run(
    query_lens: list[int],
    seq_lens: list[int],
    heads: int,
    kv_heads: int,
    dtype: torch.dtype,
    poison: float = 0.0,
    window: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Actual and expected output of a batch."""
    case = attention_case(query_lens, seq_lens, heads, kv_heads, 32, dtype, poison=poison, window=window)
    prepared = prepare(case.batch, case.table, case.k_cache, heads)
    return paged_attention(case.q, case.k_cache, case.v_cache, prepared, case.scale, window), case.expected


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
    actual, expected = run(*BATCHES["mixture"], 4, 2, torch.float32, poison=float("nan"))
    torch.testing.assert_close(actual.double(), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 5, 16, 100, 5000])
@pytest.mark.parametrize("batch", ["decodes of all lengths", "equal decodes", "several chunks of queries", "mixture"])
def test_sliding_window(batch: str, window: int) -> None:
    actual, expected = run(*BATCHES[batch], 6, 2, torch.float32, window=window)
    torch.testing.assert_close(actual.double(), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_deterministic_bits(dtype: torch.dtype) -> None:
    """A token gets the same alone, among others, in a chunk and in a whole prefill."""
    case = attention_case([1, 40, 90, 1], [300, 120, 90, 17], 14, 2, 64, dtype)
    prepared = prepare(case.batch, case.table, case.k_cache, 14, deterministic=True)
    together = paged_attention(case.q, case.k_cache, case.v_cache, prepared, case.scale)
    torch.testing.assert_close(together.double(), case.expected, atol=3e-2, rtol=1e-5)
    for sequence, length, count, token in ((0, 300, 1, 0), (1, 120, 1, 40), (1, 110, 7, 24), (2, 90, 60, 71)):
        only = RaggedBatch.of(case.batch.slots[sequence : sequence + 1], [count], [length])
        prepared = prepare(only, case.table, case.k_cache, 14, deterministic=True)
        new = slice(token, token + count)
        alone = paged_attention(case.q[new], case.k_cache, case.v_cache, prepared, case.scale)
        assert torch.equal(alone, together[new])


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("window", [0, 130, 200])
def test_tokens_that_branch(window: int, deterministic: bool) -> None:
    case = attention_case(*STEP, 14, 2, 32, torch.float32, branches=BRANCHES, window=window, poison=1e4)
    prepared = prepare(case.batch, case.table, case.k_cache, 14, deterministic)
    actual = paged_attention(case.q, case.k_cache, case.v_cache, prepared, case.scale, window)
    torch.testing.assert_close(actual.double(), case.expected, atol=2e-5, rtol=1e-5)
