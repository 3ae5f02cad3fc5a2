"""Products with quantised weights in Triton against the product with the dequantised weight."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from engine_support.triton_interpreter import COMPILED, DEVICE, use_triton

import engine_support.triton_products  # noqa: F401  isort: skip
from engine_support.affine_weights import on, random_float8, random_weight
from engine_support.captured import replayed
from engine_support.pairwise import in_turn
from torch import Tensor

from blade_llm.kernels.linear import pack_quantized, why_floats
from blade_llm.kernels.linear.affine import AffineLinear
from blade_llm.kernels.linear.float8 import Float8Linear, Float8Weight
from blade_llm.kernels.linear.gpu import forms, pack
from blade_llm.kernels.linear.gpu.packed import GpuLinear
from blade_llm.kernels.linear.gpu.words import words_of
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.spec.quantization.weights import dequantized_bytes

BF16, FP16 = torch.bfloat16, torch.float16
BOUND = {BF16: 4e-3, FP16: 5e-4}
"""Of results' rounding; of weights', which become floats for many rows, as well."""


def filled_up(weight: QuantizedWeight) -> QuantizedWeight:
    """Its first 100 inputs: the other columns are zero, as for a rank that has not all inputs of a group."""
    weight.integers[:, 100:] = weight.middle
    order = torch.cat((torch.randperm(100, generator=torch.Generator().manual_seed(5)), torch.zeros(28, dtype=int)))
    return dataclasses.replace(weight, order=order, used=100)


WEIGHTS = {
    "4 bits, groups of 64": random_weight(70, 320),
    "4 bits, groups of 32, symmetric": random_weight(130, 256, group_size=32, zeros=False),
    "4 bits, groups of 128, in an order": random_weight(64, 600, group_size=128, ordered=True),
    "4 bits a channel": random_weight(33, 77, group_size=77),
    "3 bits, groups of 16": random_weight(20, 90, bits=3, group_size=16),
    "2 bits, groups of 96": random_weight(20, 400, bits=2, group_size=96, scale_dtype=torch.float32),
    "8 bits, groups of 128": random_weight(70, 320, bits=8, group_size=128, scale_dtype=BF16),
    "8 bits a channel, symmetric": random_weight(129, 200, bits=8, group_size=200, zeros=False),
    "6 bits, groups of 320": random_weight(17, 1000, bits=6, group_size=320, ordered=True),
    "e4m3 in blocks": random_float8(150, 300, (128, 128)),
    "e4m3 by channel": random_float8(70, 130, (1, 130), torch.float32),
    "e4m3 by tensor": random_float8(40, 513, (40, 513), torch.float32),
    "one of each": random_weight(1, 1, group_size=1),
    "groups that are filled up": filled_up(random_weight(48, 128, group_size=64, zeros=False)),
}
EACH = pytest.mark.parametrize("weight", WEIGHTS.values(), ids=list(WEIGHTS))
IN_ONE_TYPE = pytest.mark.parametrize(("name", "dtype"), in_turn(list(WEIGHTS), [BF16, FP16]))


def layer(
    weight: QuantizedWeight | Float8Weight,
    dtype: torch.dtype = BF16,
    bias: Tensor | None = None,
    deterministic: bool = False,
) -> GpuLinear:
    packed = pack(on(DEVICE, weight), None if bias is None else bias.to(DEVICE), dtype, deterministic=deterministic)
    assert isinstance(packed, GpuLinear)
    return packed


def rows_of(rows: int, inputs: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows)).to(DEVICE, dtype)


def check(packed: GpuLinear, weight: QuantizedWeight | Float8Weight, x: Tensor, bias: Tensor | None = None) -> None:
    y = packed(x)
    assert (y.dtype, y.shape) == (x.dtype, (len(x), weight.outputs))
    wide, matrix = x.cpu().double(), weight.dequantize().double()
    expected = wide @ matrix.T
    if bias is not None:
        expected += bias.double()
    # Errors add up as squares do, and sums that cancel out keep those of their terms.
    terms = (wide.square() @ matrix.square().T).sum().sqrt()
    assert (y.cpu().double() - expected).norm() <= BOUND[x.dtype] * (expected.norm() + terms)


@IN_ONE_TYPE
def test_equals_the_product_with_the_dequantized_weight(name: str, dtype: torch.dtype) -> None:
    weight = WEIGHTS[name]
    bias = torch.randn(weight.outputs, generator=torch.Generator().manual_seed(3)).to(dtype)
    packed, plain = layer(weight, dtype, bias), layer(weight, dtype)
    for rows in (1, 16, 17, 64, 65):
        check(packed, weight, rows_of(rows, weight.inputs, dtype), bias)
    for rows in (3, 70):
        check(plain, weight, rows_of(rows, weight.inputs, dtype))


@IN_ONE_TYPE
def test_weights_are_the_stored_numbers(name: str, dtype: torch.dtype) -> None:
    """Each alone: one input is one. Few rows: rounded once, as a result; many: as the reference rounds it."""
    weight = WEIGHTS[name]
    packed, exact = layer(weight, dtype), weight.dequantize().to(dtype).T
    eye = torch.eye(weight.inputs).to(DEVICE, dtype)
    for first in range(0, weight.inputs, 64):
        assert torch.equal(packed(eye[first : first + 64]).cpu(), exact[first : first + 64])
    many = torch.cat([eye, eye.new_zeros(65, weight.inputs)])
    assert torch.equal(packed(many).cpu()[: weight.inputs], exact)


@pytest.mark.parametrize(("bits", "dtype"), in_turn([4, 8], [BF16, FP16]))
def test_integers_and_zero_points_at_both_ends(bits: int, dtype: torch.dtype) -> None:
    """A zero point of 16 too, as GPTQ has it, and of 255."""
    most = 2**bits - 1
    for value, zero in [(0, most), (most, 0), (0, 16), (most, most), (0, 127), (0, 128), (most, 255), (0, 0)]:
        weight = random_weight(40, 256, bits=bits, group_size=64)
        assert weight.zeros is not None
        weight.integers.fill_(value)
        weight.integers[:, ::7] = most - value
        weight.zeros.fill_(zero)
        check(layer(weight, dtype), weight, rows_of(5, 256, dtype))


@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.float32])
def test_scales_of_few_rows_are_not_rounded(scale_dtype: torch.dtype) -> None:
    """The bias takes the exact product away: a part in ten thousand may be left; rounded scales leave up to 20."""
    weight = random_weight(64, 256, group_size=256, scale_dtype=scale_dtype)
    exact = weight.dequantize().double().sum(1)
    bias = -exact.bfloat16()
    y = layer(weight, bias=bias)(torch.ones(1, 256).to(DEVICE, BF16)).cpu().double()
    assert torch.all((y[0] - (exact + bias.double())).abs() <= 1e-4 * exact.abs())


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_zeros_stay_zeros(value: float) -> None:
    for weight in (random_weight(70, 320), random_float8(70, 320, (64, 64))):
        x = torch.full((40, 320), value).to(DEVICE, BF16)
        assert not layer(weight)(x).any()
        assert not layer(weight)(torch.cat([x, x])).any()


@pytest.mark.parametrize("deterministic", [False, True])
def test_rows_that_are_not_finite_spoil_no_others(deterministic: bool) -> None:
    packed, x = layer(random_weight(70, 320), deterministic=deterministic), rows_of(20, 320)
    clean = packed(x)
    x[5], x[17, 3] = float("nan"), float("inf")
    y = packed(x)
    assert y[5].isnan().all()
    others = [row for row in range(20) if row not in (5, 17)]
    assert torch.equal(y[others], clean[others])


@EACH
def test_deterministic_rows_do_not_depend_on_the_others(weight: QuantizedWeight | Float8Weight) -> None:
    packed = layer(weight, bias=torch.randn(weight.outputs), deterministic=True)
    x = rows_of(130, weight.inputs)
    whole = packed(x)
    for rows in (1, 33, 65, 129):
        assert torch.equal(packed(x[:rows]), whole[:rows]), rows
    order = torch.randperm(130, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    assert torch.equal(packed(x[order]), whole[order])
    check(layer(weight, deterministic=True), weight, x)


def test_inputs_are_split_where_outputs_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of rows has no say in it, so a row's sum is the same in any batch that has the same tile."""
    weight, splits = random_weight(70, 2500, group_size=128), []
    for processors in (1, 4, 64):
        monkeypatch.setattr(forms, "processors", lambda device, processors=processors: processors)
        units = words_of(weight).units
        splits.append(forms.split_units(units, weight.outputs, 64, DEVICE))
        packed, x = layer(weight, bias=torch.zeros(70)), rows_of(16, weight.inputs)
        for rows in (1, 16, 40, 64):
            check(packed, weight, rows_of(rows, weight.inputs))
        assert torch.equal(packed(x[3:6]), packed(x)[3:6])
    assert splits == [(1, 10), (4, 3), (5, 2)]


def test_every_split_has_something_to_do() -> None:
    for units in range(1, 130):
        for outputs in (1, 64, 1000, 4096, 128256):
            for tile in (64, 128):
                splits, each = forms.split_units(units, outputs, tile, DEVICE)
                assert (splits - 1) * each < units <= splits * each


@pytest.mark.parametrize("inputs", [64, 896, 4096, 18944])
@pytest.mark.parametrize("outputs", [128, 1024, 28672, 151936])
def test_working_memory_is_what_is_planned_for(outputs: int, inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU as large as any: inputs in their order, and a block of floats or parts of sums."""
    monkeypatch.setattr(forms, "processors", lambda device: 160)
    for tokens in (1, 16, 64, 65, 128, 500, 8192):
        planned = dequantized_bytes(tokens, outputs, inputs)
        ordered = tokens * inputs * 2
        floats = forms.block_rows(tokens, outputs, inputs) * inputs * 2
        assert tokens <= forms.MOST_ROWS or ordered + floats <= planned
        for rows, form in (
            (min(tokens, 64), forms.form_of(min(tokens, 64), deterministic=False)),
            (128, forms._FORMS[-1]),
        ):
            splits, _ = forms.split_units(-(-inputs // 128), outputs, form.outputs, DEVICE)
            parts = min(rows, tokens) * outputs * splits * 4 if splits > 1 else 0
            assert ordered + parts <= planned, (tokens, splits)


def test_strides_change_nothing() -> None:
    packed, wide = layer(random_weight(70, 320)), rows_of(100, 700)
    for rows in (3, 100):
        assert torch.equal(packed(wide[:rows, 40:360]), packed(wide[:rows, 40:360].contiguous()))
    assert packed(wide[:0, :320]).shape == (0, 70)


def test_size() -> None:
    assert layer(random_weight(256, 1024, group_size=128)).nbytes * 8 == 256 * 1024 * (4 + 24 / 128)
    assert layer(random_weight(256, 1024, bits=8, group_size=1024, zeros=False)).nbytes == 256 * (1024 + 2)
    assert layer(random_float8(256, 1024, (128, 128))).nbytes == 256 * 1024 + 2 * 8 * 2


def test_what_is_packed_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    use_triton(monkeypatch)
    broken = random_float8(40, 64, (40, 64))
    broken.values.view(torch.uint8)[3, 5] = 0xFF
    for weight, dtype, kind, reason in (
        (random_weight(40, 64), BF16, GpuLinear, ""),
        (random_weight(40, 64), FP16, GpuLinear, ""),
        (random_float8(40, 64, (32, 32)), BF16, GpuLinear, ""),
        (random_weight(40, 64), torch.float32, AffineLinear, "activations in float32"),
        (random_weight(40, 64, group_size=24), BF16, AffineLinear, "groups of 24"),
        (random_float8(40, 64, (8, 8)), BF16, Float8Linear, "groups of 8"),
        (broken, BF16, Float8Linear, "NaN among the weights"),
    ):
        packed = pack_quantized(on(DEVICE, weight), deterministic=False, dtype=dtype)
        assert type(packed) is kind
        assert why_floats(weight, dtype) == reason
        if reason:
            with pytest.raises(ValueError, match=f"no kernel of a GPU multiplies by quantised weights with {reason}"):
                pack(weight, None, dtype, deterministic=False)


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (torch.zeros(2, 320), r"\[2, 320\] torch.float32"),
        (torch.zeros(2, 320).half(), r"\[2, 320\] torch.float16"),
        (torch.zeros(2, 319).bfloat16(), r"\[2, 319\] torch.bfloat16"),
        (torch.zeros(320).bfloat16(), r"\[320\] torch.bfloat16"),
    ],
)
def test_other_inputs_are_refused(x: Tensor, shape: str) -> None:
    with pytest.raises(ValueError, match=rf"x must be \[tokens, 320\] torch.bfloat16, not {shape}"):
        layer(random_weight(70, 320))(x.to(DEVICE))


@pytest.mark.gpu
@pytest.mark.skipif(not COMPILED, reason="needs a GPU")
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("kind", ["4 bits", "8 bits", "e4m3"])
def test_captured_products_follow_their_inputs(kind: str, deterministic: bool) -> None:
    """A layer of Llama-3-8B, in CUDA graphs; deterministic ones have the same bits alone and among others."""
    weight: QuantizedWeight | Float8Weight = random_float8(4096, 14336, (128, 128))
    if kind != "e4m3":
        weight = random_weight(4096, 14336, bits=int(kind[0]), group_size=128, ordered=True)
    packed = layer(weight, bias=torch.randn(4096), deterministic=deterministic)
    plain = layer(weight, deterministic=deterministic)
    for rows in (1, 16, 32, 64, 200):
        x, later = rows_of(rows, 14336), rows_of(rows + 1, 14336)[1:]
        y = replayed(packed, x, later)
        assert torch.equal(y, packed(later))
        check(plain, weight, later)
        if deterministic:
            assert torch.equal(packed(later[-1:]), y[-1:])
