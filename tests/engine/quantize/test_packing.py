"""Integers of a few bits in 32-bit ones, against Python's own integers of any length."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blade_llm.models.quantized.bits import unpack_rows
from blade_llm.quantize import packing
from blade_llm.quantize.packing import pack_columns, pack_rows


def packed(values: list[int], bits: int) -> list[int]:
    """One long number, cut into signed 32-bit ones."""
    number = sum(value << (place * bits) for place, value in enumerate(values))
    words = [(number >> (32 * word)) & 0xFFFFFFFF for word in range(-(-len(values) * bits // 32))]
    return [word - (1 << 32) if word >> 31 else word for word in words]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.integers(1, 5), st.integers(1, 100), st.integers(0, 2**32))
def test_words_are_one_number_cut(bits: int, rows: int, columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    integers = torch.randint(0, 1 << bits, (rows, columns), generator=generator, dtype=torch.uint8)
    integers[0] = (1 << bits) - 1
    words = pack_columns(integers, bits)
    assert words.dtype == torch.int32
    assert words.tolist() == [packed(row, bits) for row in integers.tolist()]
    assert torch.equal(pack_rows(integers.t().contiguous(), bits), words.t())
    assert torch.equal(unpack_rows(words.t(), bits, columns), integers.t())


def test_rows_are_packed_alike_wherever_a_block_of_them_ends() -> None:
    integers = torch.randint(0, 8, (2 * packing._ROWS + 3, 40), dtype=torch.uint8)
    words = pack_columns(integers, 3)
    for row in (0, packing._ROWS - 1, packing._ROWS, len(integers) - 1):
        assert words[row].tolist() == packed(integers[row].tolist(), 3)


@pytest.mark.parametrize("bits", [3, 4, 8])
def test_one_column_of_zero_points(bits: int) -> None:
    """One scale for each output: [outputs, 1]."""
    zeros = torch.randint(0, 1 << bits, (64, 1), dtype=torch.uint8)
    assert pack_rows(zeros, bits).flatten().tolist() == packed(zeros.flatten().tolist(), bits)
