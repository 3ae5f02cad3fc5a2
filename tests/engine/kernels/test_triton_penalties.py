"""Penalties, bias and mask: the Triton implementation against torch's, and that one's bias and mask by hand."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from engine_support.token_masks import bits_of
from engine_support.triton_interpreter import DEVICE

from blade_llm.kernels.penalties import RowMasks, SparseBias
from blade_llm.kernels.penalties import torch as reference
from blade_llm.kernels.penalties import triton as kernel

IMPLEMENTATIONS = pytest.mark.parametrize("implementation", [reference, kernel], ids=["torch", "triton"])
OFF = [1.0, 0.0, 0.0]
NONE = float("-inf")


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * 3


def request(
    logits: torch.Tensor, penalties: list[list[float]], prompts: list[int], lengths: list[int], longest: int = 3000
) -> list[torch.Tensor]:
    """The operator's first arguments; tokens are sampled from a few only, so that many repeat."""
    rows = len(penalties)
    vocabulary = logits.shape[1]
    generator = torch.Generator().manual_seed(longest)
    few = torch.randint(vocabulary, (max(2, longest // 9),), generator=generator)
    table = few[torch.randint(len(few), (rows + 3, longest), generator=generator)].int()
    index = torch.randperm(rows + 3, generator=generator)[:rows]
    parts = logits, table, index, torch.tensor(prompts), torch.tensor(lengths), torch.tensor(penalties)
    return [part.to(DEVICE) for part in parts]


def bias(entries: list[dict[int, float]]) -> SparseBias:
    starts = torch.tensor([0, *(len(row) for row in entries)]).cumsum(0)
    tokens = torch.tensor([token for row in entries for token in row], dtype=torch.int64)
    values = torch.tensor([value for row in entries for value in row.values()], dtype=torch.float64)
    return SparseBias(starts.to(DEVICE), tokens.to(DEVICE), values.to(DEVICE))


def masks(allowed: torch.Tensor, rows: list[int] | None = None) -> RowMasks:
    """[rows, vocabulary] bool as bits, of those ``rows`` only (all when not given)."""
    rows = list(range(len(allowed))) if rows is None else rows
    index = torch.full((len(allowed),), -1)
    index[rows] = torch.arange(len(rows))
    return RowMasks(index.to(DEVICE), bits_of(allowed[rows]).to(DEVICE))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("vocabulary", [3, 2047, 2048, 5003])
def test_penalties(vocabulary: int, dtype: torch.dtype) -> None:
    penalties = [[1.7, 0.0, 0.0], [1.0, 0.5, 0.0], OFF, [1.0, 0.0, -0.3], [0.6, -1.0, 0.7], [1.2, 2.0, 2.0]]
    arguments = request(
        randn(6, vocabulary).to(dtype), penalties, [5, 0, 3, 1024, 1023, 2], [5, 1, 2000, 1025, 3000, 2049]
    )
    before = arguments[0].clone()
    expected = reference.apply_penalties(*arguments)
    result = kernel.apply_penalties(*arguments)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-6)
    assert torch.equal(result[2], arguments[0][2].float())
    assert torch.equal(arguments[0], before)
    assert not torch.equal(result, arguments[0].float())


@IMPLEMENTATIONS
def test_bias(implementation: ModuleType) -> None:
    logits = randn(4, 4500)
    many = {token: float(token % 7) for token in range(0, 4500, 20)}
    entries = [{0: 1.5, 2048: -100.0, 4499: 100.0, 2047: NONE}, {}, many, {5: 0.25}]
    arguments = request(logits, [OFF] * 4, [1] * 4, [1] * 4, longest=8)
    result = implementation.apply_penalties(*arguments, bias(entries)).cpu()
    for row, values in enumerate(entries):
        for token, value in values.items():
            logits[row, token] += value
    assert torch.equal(result, logits)


@IMPLEMENTATIONS
@pytest.mark.parametrize("vocabulary", [31, 64, 2100])
def test_mask(implementation: ModuleType, vocabulary: int) -> None:
    logits = randn(3, vocabulary)
    allowed = torch.rand(3, vocabulary, generator=torch.Generator().manual_seed(1)) < 0.4
    allowed[1] = True
    allowed[2] = False
    arguments = request(logits, [OFF] * 3, [1] * 3, [1] * 3, longest=8)
    result = implementation.apply_penalties(*arguments, masks=masks(allowed)).cpu()
    assert torch.equal(result, logits.masked_fill(~allowed, NONE))


@IMPLEMENTATIONS
def test_a_mask_of_few_rows_leaves_the_others_alone(implementation: ModuleType) -> None:
    logits = randn(4, 2100)
    allowed = torch.rand(4, 2100, generator=torch.Generator().manual_seed(2)) < 0.1
    arguments = request(logits, [OFF] * 4, [1] * 4, [1] * 4, longest=8)
    result = implementation.apply_penalties(*arguments, masks=masks(allowed, [3, 1])).cpu()
    allowed[[0, 2]] = True
    assert torch.equal(result, logits.masked_fill(~allowed, NONE))


def test_all_at_once() -> None:
    """Penalties before the bias, and what is masked stays so."""
    logits = randn(2, 2500)
    allowed = torch.ones(2, 2500, dtype=torch.bool)
    allowed[0, [4, 2400]] = False
    arguments = request(logits, [[1.3, 0.1, 0.2], OFF], [4, 1], [40, 1], longest=50)
    seen = int(arguments[1][arguments[2][0], 0])
    more = bias([{4: 7.0, seen: -1.0}, {2499: 3.0}]), masks(allowed)
    result = kernel.apply_penalties(*arguments, *more)
    torch.testing.assert_close(result, reference.apply_penalties(*arguments, *more), atol=1e-5, rtol=1e-6)
    assert result[0, [4, 2400]].tolist() == [NONE, NONE]
    penalised = reference.apply_penalties(*arguments)[0, seen]
    assert penalised != logits[0, seen]
    assert result[0, seen] == penalised - 1.0


def test_a_real_vocabulary() -> None:
    arguments = request(randn(1, 151_936).bfloat16(), [[1.1, 0.3, 0.2]], [100], [700], longest=800)
    torch.testing.assert_close(
        kernel.apply_penalties(*arguments), reference.apply_penalties(*arguments), atol=1e-5, rtol=1e-6
    )


def test_no_rows_at_all() -> None:
    arguments = request(randn(1, 40), [OFF], [1], [1], longest=4)
    nothing = [arguments[0][:0], arguments[1], *(part[:0] for part in arguments[2:])]
    assert kernel.apply_penalties(*nothing).shape == (0, 40)
