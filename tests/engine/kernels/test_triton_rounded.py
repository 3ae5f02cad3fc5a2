"""Products of activations that are rounded to 8 bits, in Triton and by torch's functions for GPUs, against plain
arithmetic with the rounded numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_support.triton_interpreter import COMPILED, DEVICE, use_triton

import engine_support.triton_products  # noqa: F401  isort: skip
from engine_support.affine_weights import on, random_float8, random_weight
from engine_support.captured import replayed
from engine_support.pairwise import pairwise
from torch import Tensor

from blade_llm.kernels.linear import pack_quantized, why_floats
from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.linear.affine import AffineLinear
from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.gpu import float8, forms, int8
from blade_llm.kernels.linear.gpu.float8 import fp8_linear
from blade_llm.kernels.linear.gpu.int8 import int8_linear
from blade_llm.kernels.linear.gpu.rounded import RoundedLinear, why_not_rounded
from blade_llm.kernels.linear.gpu.rounding import round_rows
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.spec.quantization.weights import dequantized_bytes

BF16, FP16 = torch.bfloat16, torch.float16
DTYPES = [BF16, FP16]
BOUND = {BF16: 4e-3, FP16: 5e-4}
needs_float8 = pytest.mark.skipif(COMPILED and not float8.multiplies_float8(DEVICE), reason="a GPU without FP8")


def rows_of(rows: int, inputs: int, dtype: torch.dtype = BF16) -> Tensor:
    """With some outliers."""
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows))
    x[:, ::37] *= 20
    return x.to(DEVICE, dtype)


def rounded(x: Tensor, kind: str, scale: float | None = None, group_size: int | None = None) -> Tensor:
    """Plain arithmetic: the numbers that are multiplied, in fp32 on the CPU."""
    most = 127.5 if kind == "int8" else 448.0
    parts = []
    for part in x.cpu().float().split(group_size or x.shape[1], dim=1):
        scales = part.abs().amax(1, keepdim=True) / most if scale is None else torch.tensor([[scale]])
        scales = torch.where(scales == 0, 2.0**-23, scales)
        values = part / scales
        if kind == "int8":
            values = values.clamp(-128, 127).round()
        else:
            values = values.clamp(-448, 448).to(torch.float8_e4m3fn).float()
        parts.append(values * scales)
    return torch.cat(parts, dim=1)


def int8_weight(outputs: int, inputs: int, **options: Any) -> QuantizedWeight:
    return random_weight(outputs, inputs, bits=8, group_size=inputs, zeros=False, **options)


HOW = [(None, None), (0.125, None), (None, 128), (None, 32), (None, 5000)]
"""A fixed scale, the inputs that share one."""


@pytest.mark.parametrize(
    ("scale", "group_size", "kind", "dtype"),
    pairwise([pytest.param(*each) for each in HOW], ["int8", pytest.param("e4m3", marks=needs_float8)], DTYPES),
)
def test_activations_are_rounded(kind: Any, scale: float | None, group_size: int | None, dtype: torch.dtype) -> None:
    static = None if scale is None else torch.tensor([scale]).to(DEVICE)
    for rows, inputs in ((1, 64), (5, 1000), (2, 2500), (3, 1)):
        x = rows_of(rows, inputs, dtype)
        x[0, : inputs // 2] = 0
        x[-1] = torch.arange(inputs) * 0.25 - 30  # halves of a step, too
        values, scales = round_rows(x, kind, static, group_size)
        groups = -(-inputs // min(group_size or inputs, inputs))
        assert (values.shape, scales.shape, scales.dtype) == ((rows, inputs), (rows, groups), torch.float32)
        wide = scales.cpu().repeat_interleave(min(group_size or inputs, inputs), dim=1)[:, :inputs]
        assert torch.equal(values.cpu().float() * wide, rounded(x, kind, scale, group_size))


@pytest.mark.parametrize("kind", ["int8", pytest.param("e4m3", marks=needs_float8)])
def test_scales_of_zeros_and_of_what_is_not_finite(kind: Any) -> None:
    x = rows_of(6, 300)
    x[1], x[2, 7], x[3, 299], x[4, 0] = 0, float("nan"), float("inf"), float("-inf")
    values, scales = round_rows(x, kind)
    assert not values[1].float().any()
    assert scales[1] == 2.0**-23
    assert scales[:, 0].isnan().tolist() == [False, False, True, True, True, False]
    values, scales = round_rows(x, kind, torch.tensor([0.5]).to(DEVICE))
    assert scales[:, 0].isnan().tolist() == [False, False, True, False, False, False]
    most = 127 if kind == "int8" else 448
    assert [values[3, 299].item(), values[4, 0].item()] == [most, -128 if kind == "int8" else -448]
    assert round_rows(x[:0], kind)[0].shape == (0, 300)


def check(
    packed: Callable[[Tensor], Tensor],
    weight: QuantizedWeight | Float8Weight,
    x: Tensor,
    bias: Tensor | None,
    **how: Any,
) -> None:
    kind = "int8" if isinstance(weight, QuantizedWeight) else "e4m3"
    numbers, matrix = rounded(x, kind, **how).double(), weight.dequantize().double()
    expected = numbers @ matrix.T
    if bias is not None:
        expected += bias.double()
    y = packed(x)
    assert (y.dtype, y.shape) == (x.dtype, expected.shape)
    terms = (numbers.square() @ matrix.square().T).sum().sqrt()
    assert (y.cpu().double() - expected).norm() <= BOUND[x.dtype] * (expected.norm() + terms)


SHAPES = [(70, 320), (64, 1000), (129, 77), (1, 1)]


@pytest.mark.parametrize(
    ("outputs", "inputs", "scale", "dtype"),
    pairwise([pytest.param(*each) for each in SHAPES], [None, 0.25], DTYPES),
)
def test_int8(outputs: int, inputs: int, scale: float | None, dtype: torch.dtype) -> None:
    """Numbers of rows and sizes that ``torch._int_mm`` takes, and others."""
    weight, bias = int8_weight(outputs, inputs), torch.randn(outputs).to(dtype)
    assert not why_not_rounded(weight, None)
    packed = RoundedLinear(on(DEVICE, weight), bias.to(DEVICE), dtype, input_scale=scale)
    plain = RoundedLinear(on(DEVICE, weight), None, dtype, input_scale=scale)
    for rows in (1, 17, 64, 70):
        check(packed, weight, rows_of(rows, inputs, dtype), bias, scale=scale)
    check(plain, weight, rows_of(3, inputs, dtype), None, scale=scale)
    assert packed(rows_of(3, inputs, dtype)[:0]).shape == (0, outputs)


def test_int8_in_an_order_and_of_fewer_bits() -> None:
    for weight in (int8_weight(70, 320, ordered=True), random_weight(70, 320, group_size=320, zeros=False)):
        packed = RoundedLinear(on(DEVICE, weight), None, BF16)
        for rows in (2, 70):
            check(packed, weight, rows_of(rows, 320), None)


def test_sums_of_int8_are_exact_however_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits of a row are the same alone, in any batch, with any splits, and by cuBLAS."""
    monkeypatch.setattr(forms, "processors", lambda device: 64)
    weight, x = int8_weight(72, 1504), rows_of(70, 1504)
    x[7] = 1e30
    packed = RoundedLinear(on(DEVICE, weight), torch.randn(72).to(DEVICE), BF16)
    whole = packed(x)
    for rows in (1, 16, 33, 64):
        assert torch.equal(packed(x[:rows]), whole[:rows]), rows
    monkeypatch.setattr(forms, "processors", lambda device: 1)
    assert torch.equal(packed(x[:5]), whole[:5])
    monkeypatch.setattr(int8, "_outputs_at_once", lambda rows, outputs, inputs: 32)
    assert torch.equal(packed(x), whole)
    monkeypatch.setattr(int8, "_MULTIPLE", 1000)
    assert torch.equal(packed(x), whole)


@pytest.mark.parametrize("inputs", [64, 896, 4096, 18944])
@pytest.mark.parametrize("outputs", [128, 1024, 28672, 151936])
def test_sums_of_int8_take_no_more_memory_than_is_planned_for(outputs: int, inputs: int) -> None:
    for rows in (65, 128, 500, 8192):
        at_once = int8._outputs_at_once(rows, outputs, inputs)
        assert at_once == outputs or at_once % 8 == 0
        assert rows * (inputs + at_once * 4) <= dequantized_bytes(rows, outputs, inputs)


def test_sums_of_the_largest_int8_fit() -> None:
    weight = int8_weight(16, 4096)
    weight.integers.fill_(0)
    x = torch.full((2, 4096), -3.0).to(DEVICE, BF16)
    check(RoundedLinear(on(DEVICE, weight), None, BF16), weight, x, None)


def test_products_of_rows_that_are_not_finite() -> None:
    for weight in (int8_weight(70, 320), random_float8(70, 320, (70, 320), torch.float32)):
        if COMPILED and why_not_rounded(on(DEVICE, weight), None):
            continue
        packed, x = RoundedLinear(on(DEVICE, weight), None, BF16), rows_of(9, 320)
        clean = packed(x)
        x[5], x[6, 3] = float("nan"), float("inf")
        y = packed(x)
        assert y[5:7].isnan().all()
        assert torch.equal(y[:5], clean[:5])


FLOAT8 = {
    "in blocks": ((150, 300), (128, 128), 128),
    "in small blocks": ((70, 136), (32, 64), 32),
    "in blocks, by token": ((64, 384), (64, 128), None),
    "by output": ((70, 130), (1, 130), None),
    "by tensor": ((48, 513), (48, 513), None),
    "by tensor, in groups": ((48, 512), (48, 512), 128),
}


@needs_float8
@pytest.mark.parametrize(("form", "deterministic", "dtype"), pairwise(list(FLOAT8), [False, True], DTYPES))
def test_float8(form: str, deterministic: bool, dtype: torch.dtype) -> None:
    shape, block, group_size = FLOAT8[form]
    weight, bias = random_float8(*shape, block, torch.float32), torch.randn(shape[0]).to(dtype)
    packed = RoundedLinear(
        on(DEVICE, weight), bias.to(DEVICE), dtype, group_size=group_size, deterministic=deterministic
    )
    for rows in (1, 17, 70):
        check(packed, weight, rows_of(rows, shape[1], dtype), bias, group_size=group_size)
    check(RoundedLinear(on(DEVICE, weight), None, dtype), weight, rows_of(40, shape[1], dtype), None)
    assert packed(rows_of(3, shape[1], dtype)[:0]).shape == (0, shape[0])
    if group_size is None:
        fixed = RoundedLinear(on(DEVICE, weight), None, dtype, input_scale=0.25, deterministic=deterministic)
        check(fixed, weight, rows_of(5, shape[1], dtype), None, scale=0.25)


@needs_float8
@pytest.mark.parametrize(("shape", "block", "group_size"), FLOAT8.values(), ids=list(FLOAT8))
def test_deterministic_float8_rows_do_not_depend_on_the_others(
    shape: tuple[int, int], block: tuple[int, int], group_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "processors", lambda device: 64)
    weight = random_float8(*shape, block)
    packed = RoundedLinear(
        on(DEVICE, weight), torch.randn(shape[0]).to(DEVICE), BF16, group_size=group_size, deterministic=True
    )
    x = rows_of(130, shape[1])
    whole = packed(x)
    assert torch.equal(packed(x[:3]), whole[:3])
    assert torch.equal(packed(x[63:129]), whole[63:129])


@pytest.mark.skipif(COMPILED, reason="on a GPU torch's own is called by the tests above")
@pytest.mark.parametrize("block", [(1, 320), (64, 320)])
def test_what_is_asked_of_torch(block: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ``torch._scaled_mm``, where a GPU has e4m3: what its documentation demands of scales by row."""
    calls = []

    def scaled_mm(
        a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype
    ) -> Tensor:
        calls.append(len(a))
        assert (a.dtype, b.dtype, out_dtype) == (torch.float8_e4m3fn, torch.float8_e4m3fn, BF16)
        assert a.is_contiguous()
        assert b.t().is_contiguous()
        assert all(size % 16 == 0 for size in b.shape)
        for scale, shape in ((scale_a, (len(a), 1)), (scale_b, (1, b.shape[1]))):
            assert (scale.shape, scale.dtype, scale.is_contiguous()) == (shape, torch.float32, True)
        product = (a.float() * scale_a) @ (b.float() * scale_b)
        return (product if bias is None else product + bias.float()).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    monkeypatch.setattr(float8, "multiplies_float8", lambda device: True)
    weight, bias = random_float8(64, 320, block), torch.randn(64).to(BF16)
    packed = RoundedLinear(weight, bias, BF16)
    for rows in (1, 100):
        check(packed, weight, rows_of(rows, 320), bias)
    check(RoundedLinear(weight, None, BF16, input_scale=0.25), weight, rows_of(5, 320), None, scale=0.25)
    assert calls == [1, 100, 5]
    for dtype, other, options in (
        (FP16, weight, {}),
        (BF16, random_float8(64, 328, (1, 328)), {}),
        (BF16, random_float8(40, 320, (1, 320)), {}),
        (BF16, weight, {"deterministic": True}),
        (BF16, random_float8(64, 320, (32, 320)), {}),
        (BF16, random_float8(64, 320, (64, 64)), {"group_size": 64}),
    ):
        check(
            RoundedLinear(other, None, dtype, **options),
            other,
            rows_of(5, other.inputs, dtype),
            None,
            **{key: value for key, value in options.items() if key == "group_size"},
        )
    assert len(calls) == 3


def test_what_cannot_be_multiplied_so_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_rounded(random_weight(8, 64, bits=8, group_size=64), None) == "zero points"
    assert why_not_rounded(random_weight(8, 64, bits=8, group_size=32, zeros=False), None) == "integers in groups"
    assert why_not_rounded(int8_weight(8, 64), 32) == "integers in groups"
    assert why_not_rounded(int8_weight(1, (1 << 17) + 1), None) == "131073 inputs"
    assert why_not_rounded(random_float8(8, 64, (8, 64)), None) == "a GPU without FP8"
    monkeypatch.setattr("blade_llm.kernels.linear.gpu.rounded.multiplies_float8", lambda device: True)
    assert why_not_rounded(random_float8(8, 64, (8, 64)), None) == ""
    assert why_not_rounded(random_float8(8, 64, (8, 16)), 32) == "groups of 16 and 32"
    weight = random_float8(8, 64, (8, 16))
    x = torch.zeros(1, 64).to(BF16)
    with pytest.raises(ValueError, match="scales must be of multiples of 32 inputs, not 16 and None"):
        fp8_linear(x, weight.values, weight.scales, weight.block)
    with pytest.raises(ValueError, match=r"the weight must be int8 with up to 131072 inputs, not 64 torch.uint8"):
        int8_linear(x, torch.zeros(8, 64, dtype=torch.uint8), torch.ones(8))


@pytest.mark.gpu
@pytest.mark.skipif(not COMPILED, reason="needs a GPU")
@pytest.mark.parametrize("kind", ["int8", "by output", "in blocks"])
def test_captured_products_follow_their_inputs(kind: str) -> None:
    """A layer of Llama-3-8B, in CUDA graphs."""
    weight: QuantizedWeight | Float8Weight = int8_weight(4096, 14336)
    group_size = 128 if kind == "in blocks" else None
    if kind != "int8":
        weight = random_float8(4096, 14336, (128, 128) if group_size else (1, 14336))
    if reason := why_not_rounded(on(DEVICE, weight), group_size):
        pytest.skip(reason)
    packed = RoundedLinear(on(DEVICE, weight), None, BF16, group_size=group_size)
    for rows in (1, 16, 32, 64, 200):
        x, later = rows_of(rows, 14336), rows_of(rows + 1, 14336)[1:]
        y = replayed(packed, x, later)
        assert torch.equal(y, packed(later))
        check(packed, weight, later, None, group_size=group_size)


@pytest.mark.parametrize("scale", [None, 0.03])
def test_a_checkpoint_that_rounds_activations_gets_these_kernels(
    monkeypatch: pytest.MonkeyPatch, scale: float | None
) -> None:
    use_triton(monkeypatch)
    rounding = Activations("int8", scale)
    weight = replace(random_weight(72, 96, bits=8, group_size=96, zeros=False), activations=rounding)
    x = rows_of(5, 96)
    packed = pack_quantized(on(DEVICE, weight), dtype=BF16)
    assert isinstance(packed, RoundedLinear)
    expected = rounding.rounded(x.cpu()) @ weight.dequantize().T
    torch.testing.assert_close(packed(x).cpu(), expected.to(BF16), rtol=2**-7, atol=1e-3)


def test_a_rounding_without_a_kernel_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    use_triton(monkeypatch)
    weight = replace(random_weight(72, 96), activations=Activations("fp8"))
    assert why_floats(on(DEVICE, weight), BF16) == "activations in fp8"
    assert isinstance(pack_quantized(on(DEVICE, weight), dtype=BF16), AffineLinear)
