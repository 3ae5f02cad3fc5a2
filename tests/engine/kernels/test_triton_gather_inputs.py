"""A step's inputs gathered from the tables: the torch implementation against a loop, the Triton one against both."""

from __future__ import annotations

import random
from types import ModuleType

import pytest
import torch
from engine_support.triton_interpreter import DEVICE

from blade_llm.kernels.gather_inputs import torch as reference
from blade_llm.kernels.gather_inputs import triton as kernel

ROWS, LENGTH, BLOCK = 20, 200, 16
TOKENS = torch.arange(ROWS * LENGTH, dtype=torch.int32).view(ROWS, LENGTH)
BLOCKS = torch.randperm(ROWS * 13, generator=torch.Generator().manual_seed(0)).int().view(ROWS, 13)
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", [reference, kernel], ids=["torch", "triton"])


def arguments(shares: list[tuple[int, int, int]]) -> tuple[list[torch.Tensor], int]:
    """What the operator takes for (row, start, count) of each sequence, and the number of tokens."""
    counts = [count for _, _, count in shares]
    ends = torch.tensor([0, *counts]).cumsum(0)
    rows, starts = torch.tensor([row for row, _, _ in shares]), torch.tensor([start for _, start, _ in shares])
    return [part.to(DEVICE) for part in (rows, starts, ends, TOKENS, BLOCKS)], sum(counts)


def by_hand(shares: list[tuple[int, int, int]]) -> tuple[list[int], list[int], list[int]]:
    tokens = [(row, position) for row, start, count in shares for position in range(start, start + count)]
    slot_mapping = [int(BLOCKS[row, position // BLOCK]) * BLOCK + position % BLOCK for row, position in tokens]
    return [row * LENGTH + position for row, position in tokens], [position for _, position in tokens], slot_mapping


CASES = {
    "one decode": [(3, 77, 1)],
    "decodes": [(row, 3 * row + 140, 1) for row in (7, 1, 19, 0)],
    "one prefill": [(4, 0, 200)],
    "mixed": [(9, 199, 1), (2, 0, 150), (5, 31, 1), (11, 16, 129), (6, 15, 2)],
    "all rows": [(row, row, 1 + row % 3) for row in range(ROWS)],
}


@IMPLEMENTATIONS
@pytest.mark.parametrize("shares", CASES.values(), ids=CASES)
def test_gathers(implementation: ModuleType, shares: list[tuple[int, int, int]]) -> None:
    parts, count = arguments(shares)
    token_ids, positions, slot_mapping = implementation.gather_inputs(*parts, BLOCK, count)
    assert (token_ids.dtype, positions.dtype, slot_mapping.dtype) == (torch.int32, torch.int64, torch.int64)
    assert (token_ids.tolist(), positions.tolist(), slot_mapping.tolist()) == by_hand(shares)


@IMPLEMENTATIONS
def test_padding_is_the_first_token_of_the_last_slot(implementation: ModuleType) -> None:
    """As in a graph of a mixed step: sequences without tokens at the end, and more tokens than belong to any."""
    shares = [(9, 199, 1), (2, 0, 20), (5, 31, 3)]
    (rows, starts, ends, *tables), count = arguments(shares)
    rows = torch.cat([rows, rows.new_tensor([4, 4, 4])])
    starts, ends = torch.cat([starts, starts.new_zeros(3)]), torch.cat([ends, ends[-1:].expand(3)])
    gathered = implementation.gather_inputs(rows, starts, ends, *tables, BLOCK, LENGTH + 150)
    first = 4 * LENGTH, 0, int(BLOCKS[4, 0]) * BLOCK
    for got, expected, padding in zip(gathered, by_hand(shares), first, strict=True):
        assert got.tolist() == expected + [padding] * (LENGTH + 150 - count)


@IMPLEMENTATIONS
def test_any_mixture(implementation: ModuleType) -> None:
    generator = random.Random(7)
    for _ in range(20):
        shares = []
        for row in generator.sample(range(ROWS), generator.randint(1, ROWS)):
            start = generator.randrange(LENGTH)
            shares.append((row, start, generator.choice([1, 1, generator.randint(1, LENGTH - start)])))
        parts, count = arguments(shares)
        gathered = implementation.gather_inputs(*parts, BLOCK, count)
        assert tuple(part.tolist() for part in gathered) == by_hand(shares)


@IMPLEMENTATIONS
def test_writes_into_given_buffers_and_no_further(implementation: ModuleType) -> None:
    shares = CASES["mixed"]
    parts, count = arguments(shares)
    buffers = [torch.full((count + 3,), -1, dtype=dtype, device=DEVICE) for dtype in (torch.int32, *[torch.int64] * 2)]
    out = tuple(buffer[:count] for buffer in buffers)
    gathered = implementation.gather_inputs(*parts, BLOCK, count, out=out)
    assert tuple(part.tolist() for part in gathered) == by_hand(shares)
    for buffer, expected in zip(buffers, by_hand(shares), strict=True):
        assert buffer.tolist() == [*expected, -1, -1, -1]
