"""Thresholds searched for without a sort against those of the sort: the torch implementation, and exact sums."""

from __future__ import annotations

import pytest
import torch
from engine_support.triton_interpreter import DEVICE

from blade_llm.kernels.top_k_top_p import torch as reference
from blade_llm.kernels.top_k_top_p import triton as kernel

NONE = float("-inf")


def thresholds(logits: torch.Tensor, k: list[int], p: list[float], min_p: list[float] | None = None) -> torch.Tensor:
    """The kernel's, after a comparison with the torch implementation's."""
    arguments = [logits.to(DEVICE), torch.tensor(k, device=DEVICE), torch.tensor(p, device=DEVICE)]
    if min_p is not None:
        arguments.append(torch.tensor(min_p, device=DEVICE))
    found = kernel.top_k_top_p_thresholds(*arguments)
    torch.testing.assert_close(found, reference.top_k_top_p_thresholds(*arguments), atol=1e-6, rtol=1e-6)
    return found.cpu()


def normal(rows: int, vocabulary: int, spread: float = 2.0, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def nucleus_by_definition(row: torch.Tensor, p: float, k: int = 0) -> float:
    """The smallest logit with less than ``p`` of the probability strictly above it, in fp64."""
    values, counts = row.double().unique(return_counts=True)
    values, counts = values.flip(0), counts.flip(0)
    if k:
        values, counts = values[counts.cumsum(0) - counts < k], counts[counts.cumsum(0) - counts < k]
    mass = (values - values[0]).exp() * counts
    above = mass.cumsum(0) - mass
    return float(values[above < p * mass.sum()][-1])


@pytest.mark.parametrize("vocabulary", [1, 2, 50, 4096, 4097, 9001])
def test_top_k_is_exactly_the_kth_largest(vocabulary: int) -> None:
    logits = normal(6, vocabulary)
    k = [1, 2, 40, max(1, vocabulary - 1), vocabulary, 0]
    found = thresholds(logits, k, [1.0] * 6)
    ordered = logits.sort(-1, descending=True).values
    expected = [ordered[i, count - 1] if 0 < count < vocabulary else NONE for i, count in enumerate(k)]
    assert found.tolist() == [float(value) for value in expected]


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 3.0, 12.0, 300.0])
def test_top_p_is_exactly_the_edge_of_the_nucleus(spread: float) -> None:
    p = [0.01, 0.3, 0.75, 0.9, 0.99]
    logits = normal(5, 5003, spread, seed=3)
    found = thresholds(logits, [0] * 5, p)
    assert found.tolist() == [nucleus_by_definition(row, share) for row, share in zip(logits, p, strict=True)]


def test_top_p_counts_what_top_k_left() -> None:
    logits, k, p = normal(4, 3000, 0.7, seed=4), [5, 50, 500, 2999], [0.5, 0.8, 0.3, 0.95]
    found = thresholds(logits, k, p)
    expected = [nucleus_by_definition(row, share, count) for row, share, count in zip(logits, p, k, strict=True)]
    assert found.tolist() == expected
    alone = thresholds(logits, [0] * 4, p)
    assert (found[:2] > alone[:2]).all()


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = normal(4, 700)
    found = thresholds(logits, [0, 3, 0, 0], [1.0, 1.0, 0.2, 1.0], [0.1, 0.001, 1.0, 0.0])
    probabilities = logits.softmax(-1)
    kept = logits >= found.unsqueeze(1)
    assert torch.equal(kept[0], probabilities[0] >= 0.1 * probabilities[0].max())
    assert kept.sum(-1)[1:].tolist() == [3, 1, 700]


def test_rows_without_filters_among_others() -> None:
    logits = normal(4, 200)
    assert thresholds(logits, [0, 200, 1000, 7], [1.0] * 4).isinf().tolist() == [True, True, True, False]


def test_equal_logits_stay_or_go_together() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0, -0.0]]).repeat(4, 1)
    assert thresholds(logits, [2, 0, 0, 4], [1.0, 0.4, 0.9, 1.0]).tolist() == [2.0, 2.0, 1.0, 1.0]
    coarse = normal(3, 6000).bfloat16().float()
    found = thresholds(coarse, [50, 0, 1000], [1.0, 0.9, 0.5])
    assert found[0] == coarse[0].sort(descending=True).values[49]
    assert found[1] == nucleus_by_definition(coarse[1], 0.9)
    assert found[2] == nucleus_by_definition(coarse[2], 0.5, 1000)


def test_masked_tokens_have_no_part() -> None:
    logits = normal(4, 500)
    logits[:, 3:] = NONE
    logits[3] = NONE
    found = thresholds(logits, [2, 10, 0, 1], [1.0, 1.0, 0.999, 1.0])
    assert found[:2].tolist() == [logits[0].topk(2).values[1], NONE]
    assert found[2] == nucleus_by_definition(logits[2, :3], 0.999)


def test_values_over_many_orders_of_magnitude() -> None:
    logits = torch.tensor([[10.0**i for i in range(-30, 30)] + [-(10.0**i) for i in range(-30, 38)]])
    ordered = logits[0].sort(descending=True).values
    for k in (3, 61, 127):
        assert thresholds(logits, [k], [1.0])[0] == ordered[k - 1]


def test_neighbouring_floats_are_distinguished() -> None:
    step = torch.finfo(torch.float32).eps
    logits = (1.0 + torch.arange(64) * step).flip(0).unsqueeze(0)
    for k in (1, 2, 31, 63):
        assert thresholds(logits, [k], [1.0])[0] == logits[0, k - 1]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_broken_rows_end() -> None:
    logits = normal(3, 300)
    logits[0] = float("nan")
    logits[1, 7] = float("inf")
    arguments = logits.to(DEVICE), torch.tensor([5, 5, 5], device=DEVICE), torch.full((3,), 0.9, device=DEVICE)
    found = kernel.top_k_top_p_thresholds(*arguments).cpu()
    assert found[2] == nucleus_by_definition(logits[2], 0.9, 5)


def test_a_real_vocabulary() -> None:
    """Here one token more or less is within the precision of fp32 sums."""
    logits = normal(2, 151_936, 2.5, seed=9)
    arguments = logits.to(DEVICE), torch.tensor([0, 50], device=DEVICE), torch.tensor([0.9, 0.8], device=DEVICE)
    found = kernel.top_k_top_p_thresholds(*arguments).cpu()
    mass = logits[0].double().softmax(-1)
    assert mass[logits[0] > found[0]].sum() < 0.9 + 1e-6
    assert mass[logits[0] >= found[0]].sum() > 0.9 - 1e-6
    assert found[1] == nucleus_by_definition(logits[1], 0.8, 50)


def test_does_not_depend_on_the_batch() -> None:
    logits = normal(6, 5000)
    k, p = [0, 20, 0, 300, 1, 0], [0.9, 0.7, 0.1, 1.0, 0.5, 1.0]
    together = thresholds(logits, k, p).tolist()
    assert [float(thresholds(logits[i : i + 1], [k[i]], [p[i]])) for i in range(6)] == together
