"""Gumbel-max sampling in Triton: the very tokens of the torch implementation."""

from __future__ import annotations

import pytest
import torch
from engine_support.triton_interpreter import DEVICE

from blade_llm.kernels.gumbel_argmax import gumbel_noise, noise_key
from blade_llm.kernels.gumbel_argmax import torch as reference
from blade_llm.kernels.gumbel_argmax import triton as kernel

NONE = float("-inf")


def inputs(rows: int, vocabulary: int, spread: float = 2.0) -> tuple[torch.Tensor, ...]:
    """Logits, no thresholds, keys, positions."""
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * spread
    keys = torch.tensor([noise_key(2**40 * row - 5, row % 3) for row in range(rows)])
    parts = logits, torch.full((rows,), NONE), keys, torch.arange(rows) * 997
    return tuple(part.to(DEVICE) for part in parts)


@pytest.mark.parametrize(
    ("rows", "vocabulary", "spread"),
    [(1, 1, 1), (3, 7, 1), (16, 2048, 0), (16, 2049, 0.3), (12, 5003, 1), (8, 5003, 10), (1, 151_936, 2)],
)
def test_same_tokens_as_torch(rows: int, vocabulary: int, spread: float) -> None:
    arguments = inputs(rows, vocabulary, spread)
    assert kernel.gumbel_argmax(*arguments).tolist() == reference.gumbel_argmax(*arguments).tolist()


def test_noise_is_that_of_torch() -> None:
    """Token by token: with a threshold that leaves only a pair, the sample shows whose noise is greater."""
    rows = 100
    logits, _, keys, positions = inputs(rows, 300, spread=0.0)
    pairs = torch.randint(300, (rows, 2), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    logits = logits.scatter(1, pairs, 1.0)
    noise = gumbel_noise(keys.unsqueeze(1), positions.unsqueeze(1), pairs)
    expected = pairs.gather(1, noise.argmax(1, keepdim=True)).squeeze(1)
    assert torch.equal(kernel.gumbel_argmax(logits, torch.ones(rows, device=DEVICE), keys, positions), expected)


def test_thresholds_leave_only_what_reaches_them() -> None:
    logits, _, keys, positions = inputs(12, 3000, spread=0.5)
    thresholds = logits.topk(3).values[:, -1].contiguous()
    tokens = kernel.gumbel_argmax(logits, thresholds, keys, positions)
    assert tokens.tolist() == reference.gumbel_argmax(logits, thresholds, keys, positions).tolist()
    assert (logits.gather(1, tokens.unsqueeze(1)).squeeze(1) >= thresholds).all()
    assert len(set(tokens.tolist())) > 6


def test_one_token_left_by_a_mask() -> None:
    logits, thresholds, keys, positions = inputs(3, 4100)
    logits.fill_(NONE)
    logits[0, 4099], logits[1, 0], logits[2, 2048] = -1e30, 5.0, 0.0
    assert kernel.gumbel_argmax(logits, thresholds, keys, positions).tolist() == [4099, 0, 2048]


def test_lowest_of_equals() -> None:
    """Where the noise is lost in the logits' size all best tokens are equal, within a piece and across pieces."""
    logits, thresholds, keys, positions = inputs(3, 6000)
    logits[:] = -1e38
    logits[0, [17, 300]], logits[1, [2047, 2048, 5999]], logits[2, [4096, 4095]] = 1e38, 1e38, 1e38
    assert kernel.gumbel_argmax(logits, thresholds, keys, positions).tolist() == [17, 2047, 4095]


def test_broken_rows_yield_a_token_and_leave_others_alone() -> None:
    logits, thresholds, keys, positions = inputs(4, 3000)
    expected = kernel.gumbel_argmax(logits, thresholds, keys, positions)
    logits[0] = float("nan")
    logits[2] = NONE
    logits[3, 2500] = float("nan")
    tokens = kernel.gumbel_argmax(logits, thresholds, keys, positions)
    assert tokens.tolist() == [0, int(expected[1]), 0, 2500]


def test_does_not_depend_on_the_batch() -> None:
    logits, thresholds, keys, positions = inputs(8, 2500)
    together = kernel.gumbel_argmax(logits, thresholds, keys, positions).tolist()
    for i in range(8):
        one = slice(i, i + 1)
        alone = kernel.gumbel_argmax(logits[one], thresholds[one], keys[one], positions[one])
        assert alone.tolist() == [together[i]]


def test_no_rows_at_all() -> None:
    parts = [part[:0] for part in inputs(1, 40)]
    assert kernel.gumbel_argmax(*parts).tolist() == []
