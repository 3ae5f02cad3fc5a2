"""Weights that are integers or 8-bit floats with scales: their numbers, parts of them, and products with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_support.peak_memory import PeakMemory
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blade_llm.kernels.linear import pack_quantized
from blade_llm.kernels.linear.affine import AffineLinear
from blade_llm.kernels.linear.float8 import Float8Linear, Float8Weight
from blade_llm.kernels.linear.native import NativeLinear, is_available
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.models.quantized.slicing import (
    float8_part,
    of_consecutive_groups,
    of_groups,
    select_rows,
    stack,
    stackable,
    under_each_other,
)
from blade_llm.spec.quantization.weights import dequantized_bytes

SHAPES = st.tuples(
    st.integers(1, 40), st.integers(1, 70), st.integers(1, 80), st.integers(2, 8), st.booleans(), st.booleans()
)


def affine(outputs: int, inputs: int, group_size: int, bits: int, zeros: bool, ordered: bool) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(outputs * 1000 + inputs)
    groups = -(-inputs // group_size)

    def integers(*shape: int) -> Tensor:
        return torch.randint(0, 2**bits, shape, generator=generator, dtype=torch.uint8)

    return QuantizedWeight(
        bits,
        integers(outputs, inputs),
        (torch.rand(outputs, groups, generator=generator) + 0.1).half(),
        integers(outputs, groups) if zeros else None,
        group_size,
        torch.randperm(inputs, generator=generator) if ordered else None,
    )


def float8(outputs: int, inputs: int, block: tuple[int, int]) -> Float8Weight:
    generator = torch.Generator().manual_seed(outputs * 1000 + inputs)
    blocks = -(-outputs // block[0]), -(-inputs // block[1])
    values = torch.randn(outputs, inputs, generator=generator).to(torch.float8_e4m3fn)
    return Float8Weight(values, torch.rand(blocks, generator=generator) + 0.1, block)


def by_element(weight: QuantizedWeight | Float8Weight) -> Tensor:
    """The definition, one element after the other."""
    numbers = torch.empty(weight.outputs, weight.inputs)
    for row in range(weight.outputs):
        for column in range(weight.inputs):
            if isinstance(weight, Float8Weight):
                scale = weight.scales[row // weight.block[0], column // weight.block[1]]
                numbers[row, column] = weight.values[row, column].float() * scale.float()
                continue
            group = column // weight.group_size
            zero = 2 ** (weight.bits - 1) if weight.zeros is None else int(weight.zeros[row, group])
            target = column if weight.order is None else int(weight.order[column])
            numbers[row, target] = (int(weight.integers[row, column]) - zero) * weight.scales[row, group].float()
    return numbers


@settings(max_examples=60, deadline=None)
@given(SHAPES)
def test_integers_stand_for_their_numbers(shape: tuple[int, int, int, int, bool, bool]) -> None:
    weight = affine(*shape)
    assert torch.equal(weight.dequantize(), by_element(weight))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 48), st.integers(1, 80))
def test_8_bit_floats_stand_for_their_numbers(outputs: int, inputs: int, rows: int, columns: int) -> None:
    weight = float8(outputs, inputs, (rows, columns))
    assert torch.equal(weight.dequantize(), by_element(weight))


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.data())
def test_some_outputs_have_the_same_numbers(shape: tuple[int, int, int, int, bool, bool], data: st.DataObject) -> None:
    for weight in (affine(*shape), float8(shape[0], shape[1], (shape[3], shape[2]))):
        rows = data.draw(st.lists(st.integers(0, weight.outputs - 1), min_size=1, max_size=9))
        some = select_rows(weight, tuple(rows))
        assert torch.equal(some.dequantize(), weight.dequantize()[rows])
        both = under_each_other([weight, some])
        assert torch.equal(both.dequantize(), torch.cat([weight.dequantize(), some.dequantize()]))


def some_of(data: st.DataObject, size: int) -> range:
    first = data.draw(st.integers(0, size - 1))
    return range(first, data.draw(st.integers(first + 1, size)))


@settings(max_examples=100, deadline=None)
@given(SHAPES, st.data())
def test_some_inputs_have_the_same_numbers(shape: tuple[int, int, int, int, bool, bool], data: st.DataObject) -> None:
    """Wherever they begin and end within groups; of act-order, where the groups are anywhere."""
    weight, inputs = affine(*shape), some_of(data, shape[1])
    columns, size = slice(inputs.start, inputs.stop), weight.group_size
    wanted = weight.dequantize()[:, columns]
    kinds = weight.bits, weight.integers
    if weight.order is None:
        groups = slice(inputs.start // size, -(-inputs.stop // size))
        zeros = None if weight.zeros is None else weight.zeros[:, groups]
        part = of_consecutive_groups(kinds[0], kinds[1][:, columns], weight.scales[:, groups], zeros, size, inputs)
        assert part.columns == len(inputs)
    else:
        group_of, integers = torch.empty_like(weight.order), torch.empty_like(weight.integers)
        group_of[weight.order] = torch.arange(weight.inputs) // size
        integers[:, weight.order] = weight.integers
        own = group_of[columns]
        part = of_groups(weight.bits, integers[:, columns], weight.scales, weight.zeros, size, own)
        assert part.columns < len(inputs) + 32 * len(own.unique())
    assert part.inputs == len(inputs)
    assert torch.equal(part.dequantize(), wanted)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 48), st.integers(1, 80), st.data())
def test_a_part_of_8_bit_floats_has_the_same_numbers(
    outputs: int, inputs: int, rows: int, columns: int, data: st.DataObject
) -> None:
    weight = float8(outputs, inputs, (rows, columns))
    down, across = some_of(data, outputs), some_of(data, inputs)
    place = slice(down.start, down.stop), slice(across.start, across.stop)
    blocks = (
        slice(down.start // rows, -(-down.stop // rows)),
        slice(across.start // columns, -(-across.stop // columns)),
    )
    part = float8_part(weight.values[place], weight.scales[blocks], (rows, columns), down, across)
    assert torch.equal(part.dequantize(), weight.dequantize()[place])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_with_a_part_of_act_order(zeros: bool, dtype: torch.dtype) -> None:
    """Whose groups are filled up: native kernels take it, too."""
    generator = torch.Generator().manual_seed(3)
    whole = affine(72, 256, 64, 4, zeros, False)
    group_of = (torch.arange(256) // 64)[torch.randperm(256, generator=generator)][:100]
    part = of_groups(4, whole.integers[:, :100], whole.scales, whole.zeros, 64, group_of)
    assert (part.inputs, part.group_size) == (100, 32)
    assert part.columns == sum(-(-int(count) // 32) * 32 for count in group_of.bincount())
    linear = pack_quantized(part, None, dtype=dtype)
    assert isinstance(linear, NativeLinear) == (dtype == torch.bfloat16 and is_available())
    for rows in (1, 2, 17, 40):
        x = torch.randn(rows, 100, generator=generator).to(dtype)
        expected = x.double() @ part.dequantize().double().t()
        error = (linear(x).double() - expected).norm() / expected.norm()
        assert error < (1e-6 if dtype == torch.float32 else 8e-3)
    with pytest.raises(ValueError, match="need an order"):
        QuantizedWeight(4, part.integers, part.scales, part.zeros, 32, None, used=100)


def test_a_stack_has_the_numbers_of_its_parts() -> None:
    plain, zeros = affine(8, 64, 16, 4, False, False), affine(5, 64, 16, 4, True, False)
    assert stackable([plain, zeros])
    assert torch.equal(stack([plain, zeros]).dequantize(), torch.cat([plain.dequantize(), zeros.dequantize()]))
    ordered, other = affine(8, 64, 16, 4, False, True), affine(9, 64, 16, 4, False, True)
    assert stackable([ordered, ordered])
    assert torch.equal(stack([ordered, ordered]).dequantize(), torch.cat([ordered.dequantize()] * 2))
    for different in (affine(8, 64, 16, 8, False, False), affine(8, 64, 32, 4, False, False), ordered, torch.ones(2)):
        assert not stackable([plain, different])
    assert not stackable([ordered, other])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        *(lambda bits=bits: affine(72, 90, 16, bits, True, True) for bits in (2, 3, 4, 8)),
        lambda: affine(40, 96, 96, 4, False, False),
        lambda: float8(72, 90, (32, 32)),
    ],
)
def test_products(make: Callable[[], Any], deterministic: bool, dtype: torch.dtype, monkeypatch: Any) -> None:
    """Also where the outputs are more than are made floats at a time."""
    monkeypatch.setattr("blade_llm.kernels.linear.affine.BLOCK_ELEMENTS", 1000)
    monkeypatch.setattr("blade_llm.kernels.linear.float8.BLOCK_ELEMENTS", 1000)
    weight = make()
    generator = torch.Generator().manual_seed(1)
    bias = torch.randn(weight.outputs, generator=generator).to(dtype)
    linear = pack_quantized(weight, bias, deterministic=deterministic, dtype=dtype)
    for rows in (1, 2, 17, 40):
        x = torch.randn(rows, weight.inputs, generator=generator).to(dtype)
        expected = x.double() @ weight.dequantize().double().T + bias.double()
        y = linear(x)
        assert y.dtype == dtype
        error = (y.double() - expected).norm() / expected.norm()
        assert error < (1e-6 if dtype == torch.float32 else 4e-3)  # bf16 rounds by 2**-9
        if deterministic:
            assert torch.equal(linear(x[-1:]), y[-1:])


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("make", [lambda: affine(72, 90, 16, 4, True, True), lambda: float8(72, 90, (32, 32))])
def test_each_block_becomes_floats_once(make: Callable[[], Any], deterministic: bool, monkeypatch: Any) -> None:
    """Whatever the number of rows, in pieces of 16, too."""
    monkeypatch.setattr("blade_llm.kernels.linear.affine.BLOCK_ELEMENTS", 900)
    monkeypatch.setattr("blade_llm.kernels.linear.float8.BLOCK_ELEMENTS", 900)
    made: list[tuple[int, int]] = []
    for kind, name in ((QuantizedWeight, "dequantize_columns"), (Float8Weight, "dequantize_rows")):
        original = getattr(kind, name)
        monkeypatch.setattr(
            kind,
            name,
            lambda self, first, last, original=original: made.append((first, last)) or original(self, first, last),
        )
    linear = pack_quantized(make(), deterministic=deterministic, dtype=torch.float32)
    assert linear(torch.ones(70, 90)).shape == (70, 72)
    assert len(made) == 8
    assert linear(torch.ones(0, 90)).shape == (0, 72)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    "make", [lambda: affine(2000, 512, 16, 4, True, True), lambda: float8(2000, 512, (64, 16))], ids=["integers", "fp8"]
)
def test_working_memory(make: Callable[[], Any], deterministic: bool, monkeypatch: Any) -> None:
    """Besides the result, no more than is planned for."""
    for module in ("kernels.linear.affine", "kernels.linear.float8", "spec.quantization.weights"):
        monkeypatch.setattr(f"blade_llm.{module}.BLOCK_ELEMENTS", 1 << 15)
    weight, x = make(), torch.ones(320, 512).bfloat16()
    linear = pack_quantized(weight, torch.ones(2000), deterministic=deterministic, dtype=torch.bfloat16)
    assert isinstance(linear, AffineLinear | Float8Linear)
    with PeakMemory() as memory:
        y = linear(x)
    planned = dequantized_bytes(320, 2000, 512)
    assert 320 * 512 * 4 + y.nbytes < memory.peak <= planned + y.nbytes
    assert planned < y.nbytes


def test_small_integers_are_kept_two_in_a_byte() -> None:
    few, many = (pack_quantized(affine(64, 64, 64, bits, False, False), dtype=torch.float32) for bits in (4, 8))
    assert (few.nbytes, many.nbytes) == (64 * 32 + 64 * 2, 64 * 64 + 64 * 2)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bits": 9}, "9 bits a weight: from 2 to 8 are possible"),
        ({"integers": torch.zeros(4, 8)}, r"integers must be \[out, in\] uint8, not \[4, 8\] torch.float32"),
        ({"scales": torch.ones(4, 3).half()}, r"scales must be \[4, 2\] for \[4, 8\] integers in groups of 4"),
        ({"scales": torch.ones(4, 2).double()}, "scales must be fp16, bf16 or fp32, not torch.float64"),
        ({"zeros": torch.ones(4, 2)}, r"zeros must be \[4, 2\] uint8, not \[4, 2\] torch.float32"),
        ({"order": torch.arange(7)}, r"order must be \[8\] int64, not \[7\] torch.int64"),
        ({"group_size": 0}, "a group must have at least one input, not 0"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(changes: dict[str, Any], reason: str) -> None:
    fields: dict[str, Any] = {
        "bits": 4,
        "integers": torch.zeros(4, 8, dtype=torch.uint8),
        "scales": torch.ones(4, 2).half(),
        "zeros": None,
        "group_size": 4,
    }
    QuantizedWeight(**fields)
    with pytest.raises(ValueError, match=reason):
        QuantizedWeight(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"values": torch.zeros(4, 8)}, r"values must be \[out, in\] float8_e4m3fn, not torch.float32"),
        ({"block": (0, 4)}, r"a block must have at least one output and one input, not \(0, 4\)"),
        ({"scales": torch.ones(2, 2)}, r"scales must be \[4, 2\] .* in blocks of \[1, 4\], not \[2, 2\]"),
    ],
)
def test_8_bit_floats_that_do_not_fit_are_refused(changes: dict[str, Any], reason: str) -> None:
    fields: dict[str, Any] = {
        "values": torch.zeros(4, 8).to(torch.float8_e4m3fn),
        "scales": torch.ones(4, 2),
        "block": (1, 4),
    }
    Float8Weight(**fields)
    with pytest.raises(ValueError, match=reason):
        Float8Weight(**{**fields, **changes})
