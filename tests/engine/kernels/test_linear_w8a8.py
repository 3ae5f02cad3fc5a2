"""Linear layers that round their activations to 8 bits, and weights of 8-bit floats: native kernels against the plain
equations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from engine_support.native_isa import ISAS, limited_to, needs_native
from engine_support.rounded_activations import to_float8, to_int8
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blade_llm.kernels import native
from blade_llm.kernels.backend import torch_only
from blade_llm.kernels.linear import native as native_linear
from blade_llm.kernels.linear import pack, pack_quantized
from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.linear.affine import AffineLinear
from blade_llm.kernels.linear.float8 import Float8Linear, Float8Weight
from blade_llm.kernels.linear.quantized import QuantizedWeight

BUILT_FOR = [isa for isa in ISAS if native.ISA_NAMES.index(isa) >= native.ISA_NAMES.index("avx2")]
by_isa = pytest.mark.parametrize("isa", BUILT_FOR)
on_native = pytest.mark.skipif(torch_only(), reason="the environment keeps operators on torch")
ROWS = [1, 2, 3, 4, 5, 8, 9, 16, 17, 40, 300]
INT8, FP8 = Activations("int8"), Activations("fp8")
ROUNDINGS = [
    None,
    FP8,
    Activations("fp8", 0.004),
    Activations("fp8", group_size=128),
    Activations("fp8", group_size=64),
]


def integers(outputs: int, inputs: int, activations: Activations = INT8, seed: int = 0) -> QuantizedWeight:
    """From -128 to 127, both ends included."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(256, (outputs, inputs), dtype=torch.uint8, generator=generator)
    values.view(-1)[0], values.view(-1)[-1] = 0, 255
    scales = torch.rand(outputs, 1, generator=generator) * 0.01 + 0.005
    return QuantizedWeight(8, values, scales, None, inputs, activations=activations)


def floats(
    outputs: int, inputs: int, block: tuple[int, int], activations: Activations | None, seed: int = 0
) -> Float8Weight:
    """Every e4m3 but NaN is as likely, subnormal ones and both zeros too."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(256, (outputs, inputs), dtype=torch.uint8, generator=generator)
    values[values & 127 == 127] = 1
    blocks = -(-outputs // block[0]), -(-inputs // block[1])
    scales = torch.rand(blocks, generator=generator) * 0.01 + 0.005
    return Float8Weight(values.view(torch.float8_e4m3fn), scales, block, activations)


def inputs_of(rows: int, inputs: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed)).bfloat16()


def rounded(x: Tensor, activations: Activations | None) -> Tensor:
    scale = None if activations is None or activations.scale is None else torch.tensor(activations.scale)
    if activations is None:
        return x.float()
    return (
        to_int8(x.float(), scale) if activations.kind == "int8" else to_float8(x.float(), scale, activations.group_size)
    )


def exact(x: Tensor, weight: QuantizedWeight | Float8Weight, bias: Tensor | None = None) -> Tensor:
    """In fp64."""
    product = rounded(x, weight.activations).double() @ weight.dequantize().double().T
    return product if bias is None else product + bias


def layer_of(weight: QuantizedWeight | Float8Weight, bias: Tensor | None = None) -> native_linear.NativeLinear:
    layer = pack_quantized(weight, bias, dtype=torch.bfloat16)
    assert isinstance(layer, native_linear.NativeLinear)
    return layer


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("scale", [None, 0.013])
def test_the_reference_is_the_plain_equations(kind: str, scale: float | None) -> None:
    activations = Activations(kind, scale)  # type: ignore[arg-type]
    x = torch.randn(40, 100, generator=torch.Generator().manual_seed(0))
    x[3], x[4, 5], x[5] = 0, 1000, 1e-30
    before = x.clone()
    assert torch.equal(activations.rounded(x), rounded(x, activations))
    assert torch.equal(x, before)
    groups = Activations("fp8", group_size=24)
    assert torch.equal(groups.rounded(x), rounded(x, groups))


def test_senseless_scales_and_groups_are_refused() -> None:
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="a scale of activations must be positive and finite, not"):
            Activations("int8", scale)
    with pytest.raises(ValueError, match="groups of activations have at least one input, and no scale"):
        Activations("fp8", 1.0, 128)


@needs_native
@on_native
@by_isa
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_integers(isa: str, data: st.DataObject) -> None:
    """Only the result is rounded, to bf16: integers are summed exactly."""
    outputs, inputs = data.draw(st.integers(1, 100)), data.draw(st.integers(1, 1200))
    scale = data.draw(st.sampled_from([None, 0.02]))
    weight = integers(outputs, inputs, Activations("int8", scale), data.draw(st.integers(0, 100)))
    x, bias = inputs_of(data.draw(st.sampled_from(ROWS)), inputs), torch.randn(outputs)
    with limited_to(isa):
        y = layer_of(weight, bias)(x)
    expected = exact(x, weight, bias)
    assert torch.all((y - expected).abs() <= expected.abs() * 2**-8 + expected.abs().max() * 1e-5)


@needs_native
@on_native
@by_isa
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_floats(isa: str, data: st.DataObject) -> None:
    outputs, inputs = data.draw(st.integers(1, 100)), data.draw(st.integers(1, 600))
    block = data.draw(st.sampled_from([(1, inputs), (outputs, inputs), (32, 32), (7, 64), (128, 128)]))
    weight = floats(outputs, inputs, block, data.draw(st.sampled_from(ROUNDINGS)), data.draw(st.integers(0, 100)))
    x, bias = inputs_of(data.draw(st.sampled_from(ROWS)), inputs), torch.randn(outputs)
    with limited_to(isa):
        y = layer_of(weight, bias)(x)
    expected = exact(x, weight, bias)
    # With AVX2 a weight times the scale of its block is rounded to bf16.
    products = (rounded(x, weight.activations).square() @ weight.dequantize().square().T).sum().sqrt()
    bound = 4e-3 * (expected.norm() + (products if isa in ("avx2", "avx512") else 0))
    assert (y - expected).norm() <= bound


@needs_native
@on_native
@by_isa
@pytest.mark.parametrize(
    "weight",
    [integers(70, 1300), floats(70, 1280, (1, 1280), FP8), floats(70, 1280, (128, 128), ROUNDINGS[3])],
    ids=["int8", "fp8", "blocks"],
)
def test_rows_do_not_depend_on_the_batch(isa: str, weight: QuantizedWeight | Float8Weight) -> None:
    x = inputs_of(300, weight.inputs)
    with limited_to(isa):
        layer = layer_of(weight, torch.randn(70))
        whole = layer(x)
        for rows in (1, 2, 3, 4, 5, 8, 9, 16, 31, 65, 256):
            assert torch.equal(layer(x[:rows]), whole[:rows]), rows
        order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
        assert torch.equal(layer(x[order]), whole[order])


@needs_native
@on_native
@by_isa
@pytest.mark.parametrize(
    "weight",
    [
        integers(100, 320),
        floats(100, 320, (1, 320), FP8),
        floats(100, 320, (128, 32), Activations("fp8", group_size=32)),
    ],
    ids=["int8", "fp8", "blocks"],
)
def test_rows_that_are_zero_or_not_finite(isa: str, weight: QuantizedWeight | Float8Weight) -> None:
    bias, x = torch.randn(100), inputs_of(40, 320)
    x[7], x[9], x[11], x[12] = x[7] * 1e-30, x[9] * 1e30, 0, 1e-38
    with limited_to(isa):
        layer = layer_of(weight, bias)
        before = layer(x)
        assert torch.equal(before[11], bias.bfloat16())
        assert before.isfinite().all()
        broken = x.clone()
        broken[5], broken[20, 3], broken[21, 100] = float("nan"), float("inf"), float("nan")
        y = layer(broken)
    for row in (5, 20, 21):
        assert torch.isnan(y[row]).all(), row
    others = [row for row in range(40) if row not in (5, 20, 21)]
    assert torch.equal(y[others], before[others])
    expected = exact(x, weight, bias)
    for row in (7, 9):
        assert (before[row] - expected[row]).norm() < 5e-3 * expected[row].norm()


@needs_native
@on_native
@by_isa
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_static_scale_clips(isa: str, kind: str) -> None:
    """Infinite activations too; NaN stays."""
    activations = Activations(kind, 0.01)  # type: ignore[arg-type]
    weight = integers(40, 64, activations) if kind == "int8" else floats(40, 64, (1, 64), activations)
    x = inputs_of(20, 64)
    x[3] *= 100
    x[4, 0], x[5, 0], x[6, 0] = float("inf"), -float("inf"), float("nan")
    with limited_to(isa):
        y = layer_of(weight)(x)
    expected = exact(x, weight)
    assert y[6].isnan().all()
    for row in (3, 4, 5):
        assert (y[row] - expected[row]).norm() < 5e-3 * expected[row].norm()


@needs_native
@on_native
@by_isa
def test_sums_as_large_as_they_get(isa: str) -> None:
    weight = integers(32, 65536)
    weight.integers[0], weight.integers[1] = 0, 255
    x = torch.full((3, 65536), 2.0).bfloat16()
    x[1] = -2
    with limited_to(isa):
        y = layer_of(weight)(x)
    expected = exact(x, weight)
    assert (y - expected).norm() < 5e-3 * expected.norm()
    assert pack_quantized(integers(2, 65537), dtype=torch.bfloat16).nbytes  # left to torch
    assert isinstance(pack_quantized(integers(2, 65537), dtype=torch.bfloat16), AffineLinear)


def nearly_all() -> Tensor:
    """[rows, 64]: every finite bf16 whose results are not zero in bf16."""
    values = torch.arange(-32768, 32768).to(torch.int16).view(torch.bfloat16)
    values = values[(values.abs() > 1e-30) & values.isfinite()]
    return values[: len(values) // 64 * 64].view(-1, 64)


@needs_native
@on_native
@by_isa
def test_ties_and_reciprocals_round_as_a_division_does(isa: str) -> None:
    """A layer that copies its inputs shows how they were rounded."""
    values = nearly_all()
    weight = QuantizedWeight(8, torch.eye(64, dtype=torch.uint8) + 128, torch.ones(64, 1), None, 64)
    for scale in (None, 1.0, 0.5, 0.0123, 3e-31, 1e37):
        activations = Activations("int8", scale)
        with limited_to(isa):
            y = layer_of(replace(weight, activations=activations))(values)
        assert torch.equal(y, (rounded(values, activations)).bfloat16()), scale


@needs_native
@on_native
@by_isa
def test_floats_are_rounded_to_the_nearest_e4m3(isa: str) -> None:
    values = nearly_all()
    weight = Float8Weight(torch.eye(64).to(torch.float8_e4m3fn), torch.ones(64, 1), (1, 64))
    for scale in (None, 1.0, 0.0123, 1e37):
        activations = Activations("fp8", scale)
        with limited_to(isa):
            y = layer_of(replace(weight, activations=activations))(values)
        assert torch.equal(y, rounded(values, activations).bfloat16()), scale


@needs_native
@on_native
@by_isa
def test_every_e4m3_is_multiplied_as_it_is(isa: str) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).view(1, 256)
    for block in ((1, 256), (1, 32)):
        weight = Float8Weight(every.expand(40, 256).contiguous(), torch.ones(40, 256 // block[1]), block)
        numbers = [i for i in range(256) if i & 127 != 127]
        weight.values.view(torch.uint8)[:, [127, 255]] = 0
        with limited_to(isa):
            layer = layer_of(weight)
            for rows in (256, 3):
                y = layer(torch.eye(256)[:rows].bfloat16())
                expected = every.float().T[:rows].expand(rows, 40)
                chosen = [i for i in numbers if i < rows]
                assert torch.equal(y[chosen].float(), expected[chosen])


@needs_native
@on_native
def test_what_the_kernels_cannot_take_is_left_to_torch() -> None:
    def made(weight: QuantizedWeight | Float8Weight) -> object:
        return pack_quantized(weight, dtype=torch.bfloat16)

    assert isinstance(made(floats(40, 96, (32, 16), None)), Float8Linear)
    assert isinstance(made(floats(40, 96, (32, 32), Activations("fp8", group_size=48))), Float8Linear)
    assert isinstance(made(replace(integers(40, 96), activations=FP8)), AffineLinear)
    zeros = replace(integers(40, 96), zeros=torch.zeros(40, 1, dtype=torch.uint8))
    assert isinstance(made(zeros), AffineLinear)
    x = inputs_of(5, 96)
    for weight in (zeros, floats(40, 96, (32, 16), FP8)):
        layer = pack_quantized(weight, dtype=torch.bfloat16)
        expected = exact(x, weight)
        assert (layer(x) - expected).norm() < 5e-3 * expected.norm()


def test_weights_rounded_while_loading(path: str) -> None:
    """``--quant w8a8``: as int8 rounds them, then activations."""
    weight, bias, x = torch.randn(70, 200).bfloat16(), torch.randn(70).bfloat16(), inputs_of(20, 200)
    layer = pack(weight, bias, "w8a8")
    assert layer is not None
    scales = weight.float().abs().amax(1, keepdim=True) / 127
    expected = to_int8(x.float()) @ ((weight.float() / scales).round() * scales).T + bias.float()
    assert (layer(x).float() - expected).norm() < 4e-3 * expected.norm()
    if path != "torch":
        assert layer.nbytes <= 96 * 256 + 2 * 96 * 4  # whole panels, and pairs of steps


@needs_native
@on_native
@by_isa
@pytest.mark.parametrize("kind", ["w8a8", "float8"])
def test_prefetch_distance_is_measured_and_changes_no_result(isa: str, kind: native_linear.Kind) -> None:
    layer = layer_of(integers(320, 512) if kind == "w8a8" else floats(320, 512, (1, 512), FP8))
    assert layer.form.kind == kind
    with limited_to(isa):
        assert native_linear.prefetch_matters(kind) == (isa == "avx512_bf16")
        assert native_linear.measure_prefetch(kind, rounds=1) in native_linear.PREFETCH_DISTANCES
        for rows in (1, 3, 8, 20):
            x, results = inputs_of(rows, 512), []
            for distance in native_linear.PREFETCH_DISTANCES:
                native_linear.set_prefetch(kind, distance)
                results.append(layer(x))
            assert all(torch.equal(result, results[0]) for result in results)
