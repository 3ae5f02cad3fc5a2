"""Gumbel-max sampling: its noise is a pure function with the right distribution, and samples follow the
probabilities."""

from __future__ import annotations

import math

import pytest
import torch

from blade_llm.kernels.gumbel_argmax import gumbel_argmax, gumbel_noise, noise_key

NONE = float("-inf")


def noise(seed: int, position: int, tokens: torch.Tensor, sample_index: int = 0) -> torch.Tensor:
    return gumbel_noise(torch.tensor(noise_key(seed, sample_index)), torch.tensor(position), tokens)


def uniforms(seed: int, position: int, count: int = 50_000, sample_index: int = 0) -> torch.Tensor:
    """The noise turned back into uniform numbers."""
    return (-(-noise(seed, position, torch.arange(count), sample_index)).exp()).exp().double()


def chi_square_limit(degrees: int) -> float:
    """What chi-square stays under with probability 1 - 1e-5 (Wilson and Hilferty's approximation)."""
    return degrees * (1 - 2 / (9 * degrees) + 4.26 * math.sqrt(2 / (9 * degrees))) ** 3


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (0, 1), (1, 0), (2**63, 5), (-1, 131071), (12345, 77)])
def test_noise_is_uniform_underneath(seed: int, position: int) -> None:
    counts = torch.histc(uniforms(seed, position), bins=256, min=0.0, max=1.0)
    expected = 50_000 / 256
    assert ((counts - expected).square() / expected).sum() < chi_square_limit(255)


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 8, "position": 100},
        {"seed": 7 + 2**32, "position": 100},
        {"seed": 7, "position": 101},
        {"seed": 7, "position": 100, "sample_index": 1},
        {"seed": 8, "position": 99},
    ],
    ids=str,
)
def test_neighbouring_keys_are_independent(other: dict[str, int]) -> None:
    """Joint distribution of the same tokens' noise under two keys, on a grid of 16 by 16."""
    pair = uniforms(7, 100), uniforms(**other)
    cells = (pair[0] * 16).long().clamp(max=15) * 16 + (pair[1] * 16).long().clamp(max=15)
    counts, expected = cells.bincount(minlength=256).double(), 50_000 / 256
    assert ((counts - expected).square() / expected).sum() < chi_square_limit(255)


@pytest.mark.parametrize("lag", [1, 2, 256, 4099])
def test_neighbouring_tokens_and_positions_are_independent(lag: int) -> None:
    along_tokens = uniforms(3, 9, 50_000 + lag)
    positions = torch.arange(50_000 + lag)
    keys = torch.tensor(noise_key(3, 0)).expand(len(positions), 2)
    along_positions = (-(-gumbel_noise(keys, positions, torch.tensor(11))).exp()).exp().double()
    for series in (along_tokens, along_positions):
        cells = (series[:-lag] * 16).long().clamp(max=15) * 16 + (series[lag:] * 16).long().clamp(max=15)
        counts, expected = cells.bincount(minlength=256).double(), len(cells) / 256
        assert ((counts - expected).square() / expected).sum() < chi_square_limit(255)


def test_noise_has_the_right_tail() -> None:
    """Large noise decides samples of unlikely tokens; P(g > t) = 1 - exp(-exp(-t))."""
    sample = torch.cat([noise(seed, 1, torch.arange(200_000)) for seed in range(10)])
    for level in (5.0, 8.0, 10.0):
        expected = len(sample) * -math.expm1(-math.exp(-level))
        assert abs(int((sample > level).sum()) - expected) < 5 * math.sqrt(expected)
    assert sample.isfinite().all()


def test_noise_does_not_depend_on_what_is_computed_with_it() -> None:
    """The same bits for a token alone, in a shuffled subset, and in the whole vocabulary."""
    whole = noise(42, 17, torch.arange(5003))
    subset = torch.randperm(5003)[:1007]
    assert torch.equal(noise(42, 17, subset), whole[subset])
    assert all(noise(42, 17, torch.tensor([token]))[0] == whole[token] for token in range(0, 5003, 97))


def test_samples_follow_the_probabilities() -> None:
    """10,000 positions of one request: chi-square against the softmax."""
    logits = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -2.0, 1.5, -30.0])
    num_samples = 10_000
    keys = torch.tensor(noise_key(99, 0)).expand(num_samples, 2)
    tokens = gumbel_argmax(
        logits.expand(num_samples, -1), torch.full((num_samples,), NONE), keys, torch.arange(num_samples)
    )
    counts = tokens.bincount(minlength=8).double()
    assert counts[7] == 0
    expected = logits[:7].double().softmax(0) * num_samples
    assert ((counts[:7] - expected).square() / expected).sum() < chi_square_limit(6)


def test_samples_follow_the_probabilities_across_seeds() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 0.3])
    num_samples = 5_000
    keys = torch.tensor([noise_key(seed, 0) for seed in range(num_samples)])
    tokens = gumbel_argmax(
        logits.expand(num_samples, -1),
        torch.full((num_samples,), NONE),
        keys,
        torch.full((num_samples,), 31, dtype=torch.int64),
    )
    expected = logits.double().softmax(0) * num_samples
    assert ((tokens.bincount(minlength=4) - expected).square() / expected).sum() < chi_square_limit(3)


def test_is_the_plain_argmax_of_logits_plus_noise() -> None:
    """Skipping tokens that cannot win changes nothing."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 3000, generator=generator) * torch.tensor([0.0, 0.1, 1.0, 5.0, 20.0, 100.0]).unsqueeze(1)
    keys, positions = torch.tensor([noise_key(seed, seed) for seed in range(6)]), torch.arange(6) * 1000
    noisy = logits + gumbel_noise(keys.unsqueeze(1), positions.unsqueeze(1), torch.arange(3000))
    assert torch.equal(gumbel_argmax(logits, torch.full((6,), NONE), keys, positions), noisy.argmax(-1))
    thresholds = logits.quantile(0.99, dim=-1)
    noisy[logits < thresholds.unsqueeze(1)] = NONE
    assert torch.equal(gumbel_argmax(logits, thresholds, keys, positions), noisy.argmax(-1))


def test_a_vocabulary_larger_than_one_chunk() -> None:
    logits = torch.randn(3, 70_001, generator=torch.Generator().manual_seed(4))
    keys, positions = torch.tensor([noise_key(seed, 0) for seed in range(3)]), torch.arange(3)
    noisy = logits + gumbel_noise(keys.unsqueeze(1), positions.unsqueeze(1), torch.arange(70_001))
    assert torch.equal(gumbel_argmax(logits, torch.full((3,), NONE), keys, positions), noisy.argmax(-1))


def test_does_not_depend_on_the_batch() -> None:
    logits = torch.randn(20, 2000, generator=torch.Generator().manual_seed(2))
    keys, positions = torch.tensor([noise_key(seed, 0) for seed in range(20)]), torch.arange(20)
    none = torch.full((20,), NONE)
    together = gumbel_argmax(logits, none, keys, positions)
    order = torch.randperm(20)
    assert torch.equal(gumbel_argmax(logits[order], none, keys[order], positions[order]), together[order])
    for i in range(20):
        one = slice(i, i + 1)
        assert gumbel_argmax(logits[one], none[one], keys[one], positions[one])[0] == together[i]


def test_broken_logits_still_yield_a_token() -> None:
    """One row of NaN must not stop the engine for all others."""
    logits = torch.stack((torch.full((50,), float("nan")), torch.arange(50.0) * 100))
    keys = torch.tensor([noise_key(0, 0), noise_key(1, 0)])
    tokens = gumbel_argmax(logits, torch.full((2,), NONE), keys, torch.tensor([1, 1]))
    assert 0 <= tokens[0] < 50
    assert tokens[1] == 49
