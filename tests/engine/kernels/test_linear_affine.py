"""Native linear layers of affine-quantised weights against the product with the dequantised weight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from engine_support.affine_weights import random_weight
from engine_support.native_isa import ISAS, limited_to, needs_native
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from blade_llm.kernels import native
from blade_llm.kernels.backend import torch_only
from blade_llm.kernels.linear import native as native_linear
from blade_llm.kernels.linear.native import NativeLinear, pack_quantized
from blade_llm.kernels.linear.quantized import QuantizedWeight

pytestmark = [needs_native, pytest.mark.skipif(torch_only(), reason="the environment keeps operators on torch")]
BUILT_FOR = [isa for isa in ISAS if native.ISA_NAMES.index(isa) >= native.ISA_NAMES.index("avx2")]
ROWS = [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 70]
by_isa = pytest.mark.parametrize("isa", BUILT_FOR)


@contextmanager
def always_integers(always: bool) -> Iterator[None]:
    """Many rows as integers, or in bf16, whichever this CPU would be faster with."""
    native_linear.set_always_integers(always)
    try:
        yield
    finally:
        native_linear.set_always_integers(False)


def packed(weight: QuantizedWeight, bias: Tensor | None = None, deterministic: bool = False) -> NativeLinear:
    layer = pack_quantized(weight, bias, deterministic)
    assert layer is not None
    return layer


def inputs_of(rows: int, inputs: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed)).bfloat16()


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected).norm() / expected.norm())


def check_product(weight: QuantizedWeight, rows: int, bias: Tensor | None, deterministic: bool) -> None:
    """bf16 rounds by 2**-9: results, and for many rows weights, of which the errors add up as squares do."""
    x, dequantized = inputs_of(rows, weight.inputs).float(), weight.dequantize()
    expected = x @ dequantized.T
    if bias is not None:
        expected += bias
    y = packed(weight, bias, deterministic)(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert y.shape == expected.shape
    products = (x.square() @ dequantized.square().T).sum().sqrt()
    assert (y.float() - expected).norm() <= 4e-3 * (expected.norm() + products)


@by_isa
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equals_the_product_with_the_dequantized_weight(isa: str, data: st.DataObject) -> None:
    outputs, inputs = data.draw(st.integers(1, 100)), data.draw(st.integers(1, 400))
    weight = random_weight(
        outputs,
        inputs,
        bits=data.draw(st.sampled_from([2, 3, 4, 5, 8])),
        group_size=data.draw(st.sampled_from([32, 64, 96, 128, 320, inputs])),
        zeros=data.draw(st.booleans()),
        scale_dtype=data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32])),
        ordered=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 1000)),
    )
    if weight.group_size % 32 and weight.groups > 1:
        weight = random_weight(outputs, inputs, group_size=inputs)
    bias = torch.randn(outputs) if data.draw(st.booleans()) else None
    with limited_to(isa), always_integers(data.draw(st.booleans())):
        check_product(weight, data.draw(st.integers(1, 70)), bias, deterministic=data.draw(st.booleans()))


@by_isa
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("integers", [False, True])
def test_zero_points_and_integers_at_both_ends(isa: str, bits: int, integers: bool) -> None:
    """Weights of one sign alone, whose sums are as large as sums get; a zero point of 16 too, as GPTQ has it."""
    most = 2**bits - 1
    for value, zero in [(0, most), (most, 0), (0, most + 1 if bits == 4 else most), (most, most), (0, 0)]:
        weight = random_weight(40, 1024, bits=bits, group_size=128)
        assert weight.zeros is not None
        weight.integers.fill_(value)
        weight.integers[:, ::7] = most - value
        weight.zeros.fill_(zero)
        with limited_to(isa), always_integers(integers):
            for rows in ROWS:
                check_product(weight, rows, None, deterministic=False)


@by_isa
def test_inputs_as_large_as_they_get_do_not_overflow_a_sum(isa: str) -> None:
    for bits in (4, 8):
        weight = random_weight(32, 16384, bits=bits, group_size=16384, zeros=False)
        weight.integers.fill_(2**bits - 1)
        x = torch.full((3, 16384), 3e4).bfloat16()
        x[1] *= -1
        with limited_to(isa):
            y = packed(weight)(x)
        assert relative_error(y, x.float() @ weight.dequantize().T) < 4e-3


@by_isa
@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.float32])
def test_scales_are_not_rounded_to_bf16(isa: str, scale_dtype: torch.dtype) -> None:
    """The bias takes the exact product away: a part in ten thousand may be left of it, a bf16 scale leaves up to 20."""
    weight = random_weight(64, 256, group_size=256, scale_dtype=scale_dtype)
    x = torch.ones(1, 256).bfloat16()
    exact = x.double() @ weight.dequantize().double().T
    with limited_to(isa):
        y = packed(weight, -exact[0].float())(x)
    assert torch.all(y.abs() <= 1e-4 * exact.abs())
    rounded = replace(weight, scales=weight.scales.bfloat16())
    assert torch.any((x.double() @ rounded.dequantize().double().T - exact).abs() > 1e-3 * exact.abs())


@by_isa
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 128), (8, 64), (8, 1300)])
def test_deterministic_rows_do_not_depend_on_the_batch(isa: str, bits: int, group_size: int) -> None:
    weight = random_weight(70, 1300, bits=bits, group_size=group_size, ordered=True)
    x = inputs_of(300, 1300)
    with limited_to(isa), always_integers(True):
        layer = packed(weight, torch.randn(70), deterministic=True)
        whole = layer(x)
        for rows in (1, 2, 3, 16, 31, 65, 256):
            assert torch.equal(layer(x[:rows]), whole[:rows]), rows
        order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
        assert torch.equal(layer(x[order]), whole[order])


@by_isa
@pytest.mark.parametrize("ordered", [False, True])
def test_threads_and_strides_change_nothing(isa: str, ordered: bool) -> None:
    layer = packed(random_weight(1000, 896, ordered=ordered))
    threads = torch.get_num_threads()
    wide = inputs_of(200, 2000)
    try:
        with limited_to(isa):
            for rows in (1, 5, 200):
                results = []
                for count in (1, 2, 5):
                    torch.set_num_threads(count)
                    results += [layer(wide[:rows, 40:936]), layer(wide[:rows, 40:936].contiguous())]
                assert all(torch.equal(result, results[0]) for result in results)
    finally:
        torch.set_num_threads(threads)


@by_isa
def test_outliers_and_rows_that_are_not_finite_spoil_no_others(isa: str) -> None:
    for bits in (4, 8):
        weight = random_weight(70, 320, bits=bits)
        layer, x = packed(weight), inputs_of(40, 320)
        x[:, 100] *= 1000
        x[7] *= 1e-6
        x[9] *= 1e6
        x[11] = 0
        expected = x.float() @ weight.dequantize().T
        with limited_to(isa):
            for rows in (1, 4, 40):
                for y, row in zip(layer(x[:rows]), expected, strict=False):
                    assert torch.equal(y.float(), row) if not row.any() else relative_error(y, row) < 5e-3
            whole = layer(x)
            x[5], x[20, 3] = float("nan"), float("inf")
            y = layer(x)
            assert torch.isnan(y[5]).all()
            others = [row for row in range(40) if row not in (5, 20)]
            assert torch.equal(y[others], whole[others])


@pytest.mark.parametrize(
    ("bits", "group_size", "zeros", "bits_a_weight"),
    [(4, 64, True, 4.375), (4, 128, True, 4.1875), (4, 32, False, 4.5), (3, 128, False, 4.125), (8, 64, True, 8.375)],
)
def test_size(bits: int, group_size: int, zeros: bool, bits_a_weight: float) -> None:
    layer = packed(random_weight(256, 1024, bits=bits, group_size=group_size, zeros=zeros))
    assert layer.nbytes * 8 == bits_a_weight * 256 * 1024


@by_isa
@pytest.mark.parametrize("least", [0, 1])
def test_8_bits_per_channel_may_reach_minus_128(isa: str, least: int) -> None:
    """Where they do not, they are the int8 that weights are quantised to while loading."""
    weight = random_weight(64, 96, bits=8, group_size=96, zeros=False)
    weight.integers.clamp_(min=least)
    weight.integers[3, 5] = least
    layer = packed(weight)
    assert layer.form.kind == ("affine8", "int8")[least]
    with limited_to(isa):
        for rows in (1, 8, 40):
            check_product(weight, rows, None, deterministic=False)


def test_what_these_kernels_cannot_take_is_left_to_others() -> None:
    assert pack_quantized(random_weight(32, 64, group_size=16), None, False) is None
    far = random_weight(32, 64)
    assert far.zeros is not None
    far.zeros[1, 0] = 200
    assert pack_quantized(far, None, False) is None


def test_wrong_integers_and_orders_are_refused() -> None:
    weight = random_weight(32, 64)
    weight.integers[3, 4] = 17
    with pytest.raises(ValueError, match="integers of 4 bits reach 17"):
        pack_quantized(weight, None, False)
    weight = random_weight(32, 64, ordered=True)
    assert weight.order is not None
    weight.order[0] = weight.order[1]
    with pytest.raises(ValueError, match="the order of inputs must have each of 0 to 63 once"):
        pack_quantized(weight, None, False)


@pytest.mark.parametrize("kind", ["affine4", "affine8"])
def test_prefetch_distance_is_measured_and_changes_no_result(kind: native_linear.Kind) -> None:
    layer = packed(random_weight(320, 512, bits=4 if kind == "affine4" else 8))
    assert layer.form.kind == kind
    assert kind in native_linear.kinds_in_use()
    best = native_linear.measure_prefetch(kind, rounds=1)
    assert best in native_linear.PREFETCH_DISTANCES
    for rows in (1, 3, 8, 20):
        x, results = inputs_of(rows, 512), []
        for distance in (best, *native_linear.PREFETCH_DISTANCES):
            native_linear.set_prefetch(kind, distance)
            results.append(layer(x))
        assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.skipif("avx512_bf16" not in BUILT_FOR, reason="no avx512_bf16 here")
def test_many_rows_as_integers_or_in_bf16() -> None:
    """The measurement leaves the choice as it was; each choice takes a way of its own."""
    layer, x = packed(random_weight(64, 512)), inputs_of(40, 512)
    with limited_to("avx512_bf16"):
        assert native_linear.integers_matter()
        before = layer(x)
        assert native_linear.measure_integers(rounds=1) in (False, True)
        assert torch.equal(layer(x), before)
        with always_integers(True):
            integers = layer(x)
            assert torch.equal(integers[:3], layer(x[:3])), "a row alone is computed in the same way"
        assert not torch.equal(integers, before)
        assert relative_error(integers, before.float()) < 4e-3
