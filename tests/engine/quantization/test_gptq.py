"""GPTQ against the procedure it speeds up: optimal brain quantisation with an explicit inverse for each column."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from engine_support.layer_inputs import correlated, normal, with_outliers
from torch import Tensor

from blade_llm.quantization import gptq as gptq_module
from blade_llm.quantization import inverse_factor as inverse_factor_module
from blade_llm.quantization.clipping import least_weight_error
from blade_llm.quantization.gptq import GptqOptions, gptq, split
from blade_llm.quantization.grid import Grid
from blade_llm.quantization.hessian import Hessian
from blade_llm.quantization.inverse_factor import inverse_factor
from blade_llm.quantization.minmax import minmax
from blade_llm.quantization.report import layer_error

GRIDS = [Grid(4), Grid(3, 16), Grid(4, 24, symmetric=False), Grid(2, 8, symmetric=False), Grid(8, 48)]


def damped(x: Tensor, damping: float) -> Tensor:
    """fp64 ``E[x x']`` with ``damping`` times the mean of its diagonal added to it."""
    matrix = x.double().T @ x.double() / len(x)
    return matrix + damping * matrix.diagonal().mean() * torch.eye(len(matrix), dtype=torch.float64)


def plain(weight: Tensor, x: Tensor, grid: Grid, options: GptqOptions) -> Tensor:
    """The dequantised weight of eq. 2 and 3 of arXiv 2210.17323, a column at a time in fp64.

    Columns are rounded in order; after each, ``delta = -(w - q) / inv(H_F)[0, 0] * inv(H_F)[:, 0]`` is added to those
    that are left, ``F``.
    """
    hessian, weight = damped(x, options.damping), weight.double().clone()
    inputs = weight.shape[1]
    size = grid.group_of(inputs)
    left = list(range(inputs))
    if options.act_order:
        left = (x.double() ** 2).sum(0).argsort(descending=True, stable=True).tolist()
    original = weight.clone()
    result = torch.empty_like(weight)
    for number, column in enumerate(list(left)):
        inverse = hessian[left][:, left].inverse()
        if options.static_groups:
            start = column // size * size
            group = original[:, start : start + size]
        elif number % size == 0:
            group = weight[:, left[:size]].clone()
        low, high = group.amin(1).clamp(max=0), group.amax(1).clamp(min=0)
        if grid.symmetric:
            scale = torch.maximum(-low, high) * 2 / grid.most
            zero = torch.full_like(scale, 2 ** (grid.bits - 1))
        else:
            scale = (high - low) / grid.most
            zero = (-low / scale).round()
        rounded = (((weight[:, column] / scale).round() + zero).clamp(0, grid.most) - zero) * scale
        result[:, column] = rounded
        weight[:, left] -= ((weight[:, column] - rounded) / inverse[0, 0])[:, None] * inverse[0]
        left.pop(0)
    return result


def output_error(weight: Tensor, other: Tensor, x: Tensor) -> float:
    error = layer_error(weight, other, Hessian.of(x)).output
    assert error is not None
    return error


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("static_groups", [False, True])
@pytest.mark.parametrize("block", [1, 20, 128])
def test_equals_the_plain_procedure(grid: Grid, act_order: bool, static_groups: bool, block: int) -> None:
    weight, x = normal(24, 48), with_outliers(correlated(200, 48, noise=0.3), [40, 7], 5.0)
    options = GptqOptions(act_order=act_order, static_groups=static_groups, block=block)
    expected = plain(weight, x, grid, options)
    actual = gptq(weight, Hessian.of(x), grid, options).weight.dequantize()
    # Where fp32 and fp64 round to different integers, the columns after differ too; and the largest weight of a
    # symmetric group is 7.5 steps, rounded up or down by the last bit. Plain rounding differs in 23 rows.
    rows_that_differ = ((actual - expected).abs() > 1e-4).any(1)
    assert int(rows_that_differ.sum()) <= 6


def test_plain_procedure_is_not_rounding_to_nearest() -> None:
    """What the test above compares with differs from plain rounding in nearly every row."""
    weight, x, grid = normal(24, 48), correlated(200, 48), Grid(4)
    differ = ((plain(weight, x, grid, GptqOptions()) - minmax(weight, grid).dequantize()).abs() > 1e-4).any(1)
    assert int(differ.sum()) >= 23


@pytest.mark.parametrize("act_order", [False, True])
def test_loss_is_the_damped_error_of_the_outputs(act_order: bool) -> None:
    weight, x = normal(24, 48), correlated(200, 48)
    found = gptq(weight, Hessian.of(x), Grid(3, 16), GptqOptions(damping=0.05, act_order=act_order))
    wrong = (found.weight.dequantize() - weight).double()
    assert found.loss == pytest.approx(float((wrong @ damped(x, 0.05) * wrong).sum()), rel=1e-3)
    assert (found.damping, found.unused, found.notes) == (0.05, 0, ())


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("seed", range(4))
def test_outputs_change_less_than_by_rounding_to_nearest(grid: Grid, seed: int) -> None:
    weight, x = normal(64, 96 if grid.group_size == 48 else 144, seed=seed).bfloat16(), correlated(400, 144, seed)
    x = x[:, : weight.shape[1]]
    nearest = output_error(weight, minmax(weight, grid).dequantize(), x)
    for options in (GptqOptions(), GptqOptions(act_order=True), GptqOptions(act_order=True, static_groups=True)):
        found = gptq(weight, Hessian.of(x), grid, options)
        assert output_error(weight, found.weight.dequantize(), x) < 0.7 * nearest


def test_independent_inputs_are_rounded_to_nearest() -> None:
    """No other column can make good an error."""
    weight = normal(16, 32)
    hessian = Hessian(torch.diag(torch.linspace(0.1, 3, 32)), 1000)
    for options in (GptqOptions(), GptqOptions(act_order=True, static_groups=True)):
        found = gptq(weight, hessian, Grid(4, 8), options).weight
        assert torch.equal(found.integers, minmax(weight, Grid(4, 8)).integers)
        assert found.order is None


def test_act_order_helps_where_large_inputs_come_last() -> None:
    """In the natural order they are rounded when no column is left to make good their errors."""
    for seed in range(4):
        weight, x = normal(64, 96, seed=seed), with_outliers(correlated(400, 96, seed), [90, 92, 93, 95], 10.0)
        errors = [
            output_error(weight, gptq(weight, Hessian.of(x), Grid(3), options).weight.dequantize(), x)
            for options in (GptqOptions(), GptqOptions(act_order=True))
        ]
        assert errors[1] < 0.8 * errors[0]


def test_groups_of_act_order() -> None:
    weight, x = normal(8, 32), with_outliers(correlated(100, 32), [5, 30], 10.0)
    grid = Grid(4, 8, symmetric=False)
    moved = gptq(weight, Hessian.of(x), grid, GptqOptions(act_order=True)).weight
    assert moved.order is not None
    assert sorted(moved.order.tolist()) == list(range(32))
    energy = (x**2).sum(0)[moved.order].tolist()
    assert all(before >= after for before, after in pairwise(energy))
    kept = gptq(weight, Hessian.of(x), grid, GptqOptions(act_order=True, static_groups=True)).weight
    assert kept.order is None
    nearest = minmax(weight, grid)
    assert torch.equal(kept.scales, nearest.scales)
    assert not torch.equal(kept.integers, nearest.integers)
    whole_rows = gptq(weight, Hessian.of(x), Grid(4), GptqOptions(act_order=True)).weight
    assert whole_rows.order is None


def test_outputs_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, hessian, grid = normal(20, 48), Hessian.of(correlated(200, 48)), Grid(4, 16, symmetric=False)
    whole = gptq(weight, hessian, grid)
    monkeypatch.setattr(gptq_module, "ROWS", 7)
    parts = gptq(weight, hessian, grid)
    assert int((whole.weight.integers != parts.weight.integers).any(1).sum()) <= 1
    assert parts.loss == pytest.approx(whole.loss, rel=1e-2)


@pytest.mark.parametrize("symmetric", [False, True])
def test_layers_that_share_their_input_are_quantised_as_one(symmetric: bool) -> None:
    layers = [normal(12, 32), normal(3, 32, seed=1), normal(5, 32, seed=2)]
    hessian, grid = Hessian.of(with_outliers(correlated(100, 32), [9], 5.0)), Grid(4, 8, symmetric)
    together = gptq(torch.cat(layers), hessian, grid, GptqOptions(act_order=True)).weight
    parts = split(together, [12, 3, 5])
    assert torch.equal(torch.cat([part.dequantize() for part in parts]), together.dequantize())
    for layer, part in zip(layers, parts, strict=True):
        assert part.integers.shape == layer.shape
        if not symmetric:  # there the largest weight of a group is 7.5 steps, rounded up or down by the last bit
            alone = gptq(layer, hessian, grid, GptqOptions(act_order=True)).weight
            differ = (part.dequantize() - alone.dequantize()).abs() > 1e-4
            assert int(differ.any(1).sum()) <= 1
    with pytest.raises(ValueError, match=r"layers of \[12, 3\] outputs are not those of a weight of 20"):
        split(together, [12, 3])


@pytest.mark.parametrize("static_groups", [False, True])
def test_ranges_can_be_searched(static_groups: bool) -> None:
    weight, x = normal(64, 64) * (1 + 3 * (normal(64, 64, seed=1).abs() > 2)), correlated(300, 64)
    options = GptqOptions(static_groups=static_groups)
    found, plainly = (
        gptq(weight, Hessian.of(x), Grid(3, 32), options, *search).weight for search in ([least_weight_error], [])
    )
    assert output_error(weight, found.dequantize(), x) < output_error(weight, plainly.dequantize(), x)
    assert torch.all(found.scales[:, 0] <= plainly.scales[:, 0] + 1e-7)


@pytest.mark.parametrize("weight", [normal(1, 256), normal(256, 32).T], ids=["one output", "transposed"])
def test_the_weight_stays_as_it_is(weight: Tensor) -> None:
    before = weight.clone()
    gptq(weight, Hessian.of(correlated(512, 256)), Grid(4))
    assert torch.equal(weight, before)


def test_scales_are_stored_in_the_type_of_the_grid() -> None:
    weight, x = normal(16, 32).bfloat16(), correlated(100, 32)
    found = gptq(weight, Hessian.of(x), Grid(4, 16, scale_dtype=torch.bfloat16))
    assert found.weight.scales.dtype == torch.bfloat16
    wrong = (found.weight.dequantize() - weight.float()).double()
    assert found.loss == pytest.approx(float((wrong @ damped(x, 0.01) * wrong).sum()), rel=1e-3)


@pytest.mark.parametrize("order", [None, torch.tensor([3, 0, 7, 1, 2, 6, 5, 4])])
def test_inverse_factor(order: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inverse_factor_module, "_COLUMNS", 3)
    monkeypatch.setattr(inverse_factor_module, "_CHUNK", 5)
    x = correlated(50, 8)
    upper = inverse_factor(Hessian.of(x), 0.1, order).upper.double()
    inverse = damped(x, 0.1).inverse()
    if order is not None:
        inverse = inverse[order][:, order]
    assert torch.equal(upper, upper.triu())
    torch.testing.assert_close(upper.T @ upper, inverse, rtol=1e-3, atol=1e-3)


def test_singular_hessian_is_damped_more_and_said() -> None:
    weight, x = normal(16, 32), normal(8, 32)
    found = gptq(weight, Hessian.of(x), Grid(4), GptqOptions(damping=0.0))
    assert found.damping == 0.01
    assert found.notes == (
        "8 tokens are fewer than 32 inputs: the Hessian is singular but for damping",
        "the Hessian is singular with a damping of 0: raised to 0.01",
    )
    same = gptq(weight, Hessian.of(x), Grid(4), GptqOptions(damping=0.01))
    assert torch.equal(found.weight.integers, same.weight.integers)
    assert output_error(weight, found.weight.dequantize(), x) < output_error(
        weight, minmax(weight, Grid(4)).dequantize(), x
    )


def test_equal_inputs_make_a_singular_hessian_too() -> None:
    x = correlated(100, 16)
    x[:, 9] = x[:, 3]
    notes = inverse_factor(Hessian.of(x), 0.0).notes
    assert notes == ("the Hessian is singular with a damping of 0: raised to 0.01",)
    assert inverse_factor(Hessian.of(correlated(100, 16)), 0.0).notes == ()


def test_inputs_that_calibration_never_used() -> None:
    """Their weights are rounded to nearest and change nothing else."""
    weight, x = normal(16, 32), correlated(200, 32)
    x[:, [4, 20]] = 0
    found = gptq(weight, Hessian.of(x), Grid(4))
    assert found.unused == 2
    assert found.notes == ("2 of 32 inputs were zero in all of calibration: their weights are rounded to nearest",)
    nearest = minmax(weight, Grid(4))
    assert torch.equal(found.weight.integers[:, [4, 20]], nearest.integers[:, [4, 20]])
    used = [column for column in range(32) if column not in (4, 20)]
    alone = gptq(weight[:, used], Hessian.of(x[:, used]), Grid(4))
    same_range = (weight[:, used].abs().amax(1) == weight.abs().amax(1)).nonzero()[:, 0]
    assert len(same_range) > 8
    assert int((found.weight.integers[:, used] != alone.weight.integers)[same_range].any(1).sum()) <= 3


def test_inputs_of_zeros() -> None:
    weight = normal(4, 16)
    found = gptq(weight, Hessian.of(torch.zeros(20, 16)), Grid(4))
    assert found.unused == 16
    assert torch.equal(found.weight.integers, minmax(weight, Grid(4)).integers)


def test_a_hessian_that_is_not_finite_is_refused() -> None:
    matrix = torch.eye(8)
    matrix[1, 2] = matrix[2, 1] = float("nan")
    with pytest.raises(ValueError, match="the Hessian holds NaN or infinite numbers"):
        inverse_factor(Hessian(matrix, 8), 0.01)


def test_bad_input() -> None:
    weight, hessian = normal(4, 16), Hessian.of(normal(40, 16))
    with pytest.raises(ValueError, match="Hessian of 16 inputs for a weight of 8"):
        gptq(weight[:, :8], hessian, Grid(4))
    with pytest.raises(ValueError, match="groups of 5 do not divide 16 inputs"):
        gptq(weight, hessian, Grid(4, 5))
    with pytest.raises(ValueError, match="NaN or infinite"):
        gptq(weight * float("nan"), hessian, Grid(4))
    for damping in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="choose a share of the mean"):
            gptq(weight, hessian, Grid(4), GptqOptions(damping=damping))
    with pytest.raises(ValueError, match="blocks of 0 columns"):
        GptqOptions(block=0)
