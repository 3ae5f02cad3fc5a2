"""Packed linear layers against the plain product, on every instruction set the CPU has and without the library."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from blade_llm.kernels.linear import native as native_linear
from blade_llm.kernels.linear import pack
from blade_llm.kernels.linear import torch as reference
from blade_llm.kernels.linear.packed import Quantization
from blade_llm.layers.linear import Linear, LinearOptions

SHAPES = [(64, 64), (100, 70), (1, 32), (33, 31), (7, 5), (288, 224), (96, 1184)]
"""Outputs and inputs; most are no multiples of the tile."""
ROWS = [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 65, 97, 257]
QUANTS: list[Quantization] = ["none", "int8", "int4"]


@pytest.fixture(params=QUANTS)
def quant(request: pytest.FixtureRequest, path: str) -> Quantization:
    """A quantisation, unless torch leaves the weight as it is: unquantised, on a CPU that oneDNN has no bf16 for."""
    name: Quantization = request.param
    if name == "none" and path == "torch" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN does not pack bf16 here")
    return name


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).mul_(scale).bfloat16()


def as_stored(weight: Tensor, quant: Quantization) -> Tensor:
    """The weight that a quantised layer has, in fp32."""
    if quant == "int8":
        integers, scales = reference.quantize_int8(weight)
        return integers * scales
    if quant == "int4":
        return reference.dequantize_int4(*reference.quantize_int4(weight), weight.shape[1])
    return weight.float()


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual.float() - expected.float()).norm() / expected.float().norm())


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_equals_the_plain_product(path: str, quant: Quantization, outputs: int, inputs: int) -> None:
    weight, bias = random(outputs, inputs, scale=0.1), random(outputs, seed=1)
    stored = as_stored(weight, quant)
    with_bias, without = pack(weight, bias, quant), pack(weight, None, quant)
    assert with_bias is not None
    assert without is not None
    assert (type(with_bias).__module__ == native_linear.__name__) == (path != "torch")
    bound = 8e-3 if quant == "int4" else 4e-3  # bf16 rounds by 2**-9: results, and int4 weights times their scale
    for rows in ROWS:
        x = random(rows, inputs, seed=2)
        expected = x.float() @ stored.T
        y = with_bias(x)
        assert y.dtype == torch.bfloat16
        assert y.shape == (rows, outputs)
        assert relative_error(y, expected + bias.float()) < bound, rows
        assert relative_error(without(x), expected) < bound, rows


def test_error_and_size_of_quantised_weights(path: str, quant: Quantization) -> None:
    """Normally distributed weights. Plain rounding to 16 even levels per group (8.6 %) would fail the int4 bound."""
    bound, bits = {"none": (2e-3, 16.0), "int8": (9e-3, 8.6), "int4": (8e-2, 4.6)}[quant]
    weight, x = random(256, 1024, scale=0.02), random(64, 1024, seed=1)
    packed = pack(weight, None, quant)
    assert packed is not None
    assert relative_error(packed(x), x.float() @ weight.float().T) < bound
    assert packed.nbytes * 8 <= bits * weight.numel()


def test_levels_and_scales_fit_the_weights() -> None:
    """Both packers find the same levels; a group of zeros, and one outlier, stay exact."""
    weight = random(32, 64, scale=0.3)
    weight[3] = 0
    weight[4, :32] = 0
    weight[4, 7] = -5.0
    weight[5, :32] = 0
    weight[5, 9] = 3.0
    stored = as_stored(weight, "int4")
    assert torch.equal(stored[3], torch.zeros(64))
    assert torch.equal(stored[4, :32], weight[4, :32].float())
    assert torch.equal(stored[5, :32], weight[5, :32].float())
    for quant in ("int8", "int4"):
        packed = pack(weight, None, quant)
        assert packed is not None
        identity = torch.eye(64).bfloat16()
        assert relative_error(packed(identity).T, as_stored(weight, quant)) < 3e-3


def test_outliers_among_the_activations_cost_nothing(path: str, quant: Quantization) -> None:
    """A few values a thousand times the others, as real models have them; tokens of very different size."""
    weight, x = random(200, 512, scale=0.05), random(20, 512, seed=8)
    x[:, 100] *= 1000
    x[7] *= 1e-6
    x[9] *= 1e6
    x[11] = 0
    packed = pack(weight, None, quant)
    assert packed is not None
    expected = x.float() @ as_stored(weight, quant).T
    for rows in (1, 2, 20):
        for y, row in zip(packed(x[:rows]), expected, strict=False):
            assert torch.equal(y.float(), row) if not row.any() else relative_error(y, row) < 5e-3


def test_takes_rows_of_a_larger_matrix(path: str, quant: Quantization) -> None:
    weight = random(96, 64)
    packed = pack(weight, None, quant)
    assert packed is not None
    wide = random(20, 200, seed=3)
    for x in (wide[:, 40:104], wide[:, ::2][:, :64], wide[3:3, :64], wide[::2, :64]):
        assert torch.equal(packed(x), packed(x.clone(memory_format=torch.contiguous_format)))


def test_a_row_that_is_not_finite_spoils_no_other(path: str, quant: Quantization) -> None:
    if path == "torch":
        pytest.skip("oneDNN multiplies what lies beyond a row by zero, which leaves NaN")
    weight = random(70, 45)
    packed = pack(weight, None, quant)
    assert packed is not None
    x = random(40, 45, seed=4)
    expected = packed(x)
    x[5], x[20, 3] = float("nan"), float("inf")
    y = packed(x)
    assert torch.isnan(y[5]).all()
    others = [row for row in range(40) if row not in (5, 20)]
    assert torch.equal(y[others], expected[others])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_deterministic_rows_do_not_depend_on_the_batch(path: str, quant: Quantization, dtype: torch.dtype) -> None:
    weight, bias = random(70, 1300).to(dtype), random(70, seed=1).to(dtype)
    packed = pack(weight, bias, quant, deterministic=True)
    assert packed is not None
    x = random(300, 1300, seed=5).to(dtype)
    whole = packed(x)
    for rows in (1, 2, 3, 16, 31, 65, 256):
        assert torch.equal(packed(x[:rows]), whole[:rows]), rows
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    assert torch.equal(packed(x[order]), whole[order])


def test_threads_change_nothing(path: str, quant: Quantization) -> None:
    packed = pack(random(1000, 896), random(1000, seed=1), quant)
    assert packed is not None
    threads = torch.get_num_threads()
    try:
        for rows in (1, 40, 200):
            x = random(rows, 896, seed=6)
            results = []
            for count in (1, 2, 5):
                torch.set_num_threads(count)
                results.append(packed(x))
            assert all(relative_error(result, results[0]) < 3e-3 for result in results)
            assert path == "torch" or all(torch.equal(result, results[0]) for result in results)
    finally:
        torch.set_num_threads(threads)


def test_shares_the_tile_registers_with_onednn() -> None:
    """Both configure AMX for themselves, in the same threads."""
    weight, x = random(320, 512), random(48, 512, seed=7)
    plain, packed = F.linear(x, weight), pack(weight)
    assert packed is not None
    for rows in (48, 3, 33, 1):
        ours = packed(x[:rows])
        assert relative_error(F.linear(x, weight), plain) < 1e-6
        assert relative_error(ours, plain[:rows]) < 4e-3


def test_fp32_is_as_exact_as_torch() -> None:
    weight, bias, x = random(130, 75).float(), random(130, seed=1).float(), random(21, 75, seed=2).float()
    expected = F.linear(x.double(), weight.double(), bias.double())
    for rows in (1, 21):
        assert relative_error(Linear(weight, bias)(x[:rows]), expected[:rows]) < 1e-6


def test_wrong_input_is_refused() -> None:
    packed = pack(random(64, 32))
    if not isinstance(packed, native_linear.NativeLinear):
        pytest.skip("no native linear layers here")
    with pytest.raises(ValueError, match=r"expected \[tokens, 32\] bf16, got \[2, 64\]"):
        packed(random(2, 64))
    with pytest.raises(ValueError, match="float32"):
        packed(random(2, 32).float())


def test_a_layer_counts_and_keeps_only_what_it_packed(path: str) -> None:
    if path == "torch" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("oneDNN does not pack bf16 here")
    weight = random(256, 256)
    bytes_of = {quant: Linear(weight, None, LinearOptions(quant)).nbytes for quant in QUANTS}
    assert bytes_of["none"] == weight.nbytes
    assert bytes_of["int8"] == 256 * 256 + 256 * 4
    assert bytes_of["int4"] == 256 * 256 // 32 * 18
    layer = Linear(weight)
    assert layer.packed is not None
    assert layer.weight is None


@pytest.mark.parametrize("quant", QUANTS)
def test_prefetch_distance_is_measured_and_changes_no_result(quant: Quantization) -> None:
    if not native_linear.prefetch_matters(quant):
        pytest.skip("the kernel in use fetches at a distance of its own")
    packed = pack(random(320, 512), quant=quant)
    assert packed is not None
    best = native_linear.measure_prefetch(quant, rounds=1)
    assert best in native_linear.PREFETCH_DISTANCES
    for rows in (1, 3, 8, 20):
        x, results = random(rows, 512, seed=9), []
        for distance in (best, *native_linear.PREFETCH_DISTANCES):
            native_linear.set_prefetch(quant, distance)
            results.append(packed(x))
        assert all(torch.equal(result, results[0]) for result in results)
