"""What calibration keeps of a layer's inputs."""

from __future__ import annotations

import pytest
import torch
from engine_support.layer_inputs import correlated, normal, with_outliers

from blade_llm.quantization import hessian as hessian_module
from blade_llm.quantization.hessian import BUFFERED_ROWS, Hessian, HessianAccumulator
from blade_llm.quantization.input_statistics import InputStatistics, InputStatisticsAccumulator
from blade_llm.quantization.report import LayerError, layer_error


def test_batches_add_up_to_the_mean_of_all_tokens() -> None:
    x = with_outliers(correlated(3 * BUFFERED_ROWS + 17, 24), [5])
    accumulator, statistics = HessianAccumulator(24), InputStatisticsAccumulator(24)
    sizes = [1, 0, 5, BUFFERED_ROWS - 6, BUFFERED_ROWS + 1, BUFFERED_ROWS, 16]
    start = 0
    for size in sizes:
        accumulator.add(x[start : start + size])
        statistics.add(x[start : start + size])
        start += size
    assert start == len(x)
    hessian, seen = accumulator.finish(), statistics.finish()
    exact = x.double()
    torch.testing.assert_close(hessian.matrix.double(), exact.T @ exact / len(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(seen.most, x.abs().amax(0))
    torch.testing.assert_close(seen.mean.double(), exact.abs().mean(0), rtol=1e-6, atol=0)
    assert (hessian.tokens, seen.tokens, hessian.inputs) == (len(x), len(x), 24)


def test_sequences_of_a_batch_and_types() -> None:
    x = normal(2, 7, 12).bfloat16()
    rows = x.reshape(14, 12).double()
    for dtype in (torch.float32, torch.float64):
        accumulator = HessianAccumulator(12, dtype=dtype)
        accumulator.add(x)
        torch.testing.assert_close(accumulator.finish().matrix.double(), rows.T @ rows / 14)
    torch.testing.assert_close(InputStatistics.of(x).most.double(), rows.abs().amax(0))


def test_more_can_be_added_after_a_result() -> None:
    x = normal(30, 8)
    accumulator, statistics = HessianAccumulator(8), InputStatisticsAccumulator(8)
    for part in (x[:10], x[10:]):
        accumulator.add(part)
        statistics.add(part)
        first = (accumulator.finish(), statistics.finish())
    torch.testing.assert_close(first[0].matrix, Hessian.of(x).matrix)
    torch.testing.assert_close(first[1].mean, InputStatistics.of(x).mean)


def test_sum_in_fp32_stays_precise_over_many_batches() -> None:
    """A large mean hides small terms best: 200 batches of inputs near 100."""
    x = 100 + normal(BUFFERED_ROWS, 4)
    accumulator = HessianAccumulator(4)
    for _ in range(200):
        accumulator.add(x)
    exact = x.double().T @ x.double() / len(x)
    assert float(((accumulator.finish().matrix - exact) / exact).abs().max()) < 1e-5


def test_half_of_the_matrix_is_computed_and_the_rest_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hessian_module, "BAND", 5)
    for inputs in (4, 5, 12, 15):
        x = correlated(30, inputs)
        matrix = Hessian.of(x).matrix
        torch.testing.assert_close(matrix, x.T @ x / 30)
        assert torch.equal(matrix, matrix.T)


def test_scaled_and_blocks() -> None:
    x, factors = correlated(40, 12), torch.linspace(0.5, 2, 12)
    torch.testing.assert_close(Hessian.of(x).scaled(factors).matrix, Hessian.of(x * factors).matrix)
    blocks = Hessian.of(x).blocks(4)
    for index in range(3):
        inside = slice(4 * index, 4 * index + 4)
        torch.testing.assert_close(blocks[index], Hessian.of(x[:, inside]).matrix)


def test_error_of_a_layer_is_that_of_its_outputs() -> None:
    weight, x = normal(20, 16), correlated(100, 16)
    other = weight + 0.1 * normal(20, 16, seed=3)
    found = layer_error(weight, other, Hessian.of(x))
    outputs = (x @ other.T - x @ weight.T).square().sum() / (x @ weight.T).square().sum()
    assert found.output == pytest.approx(float(outputs), rel=1e-4)
    assert found.weight == pytest.approx(float((other - weight).square().sum() / weight.square().sum()), rel=1e-5)
    assert layer_error(weight, weight, Hessian.of(x)) == LayerError(0.0, 0.0)
    assert layer_error(weight, other).output is None
    assert layer_error(torch.zeros(2, 2), torch.zeros(2, 2)).weight == 0
    assert layer_error(torch.zeros(2, 2), torch.ones(2, 2)).weight == float("inf")
    with pytest.raises(ValueError, match=r"a weight of \[20, 16\] became one of \[16, 20\]"):
        layer_error(weight, weight.T)


def test_empty_calibration() -> None:
    accumulator, statistics = HessianAccumulator(8), InputStatisticsAccumulator(8)
    accumulator.add(torch.empty(0, 8))
    statistics.add(torch.empty(0, 8))
    for each in (accumulator, statistics):
        with pytest.raises(ValueError, match="calibration is empty: the layer saw no activations"):
            each.finish()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_activations_that_are_not_finite_are_refused_and_not_counted(bad: float) -> None:
    x = torch.ones(4, 8)
    x[1, 2] = bad
    for each in (HessianAccumulator(8), InputStatisticsAccumulator(8)):
        with pytest.raises(ValueError, match="1 of 32 calibration activations are NaN or infinite"):
            each.add(x)
        assert each.tokens == 0


def test_other_bad_input() -> None:
    with pytest.raises(ValueError, match=r"activations must be \[\.\.\., 8\] floats"):
        HessianAccumulator(8).add(torch.ones(4, 9))
    with pytest.raises(ValueError, match="choose fp32 or fp64"):
        HessianAccumulator(8, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="overflow fp32"):
        Hessian.of(torch.full((2, 3), 1e30))
    with pytest.raises(ValueError, match="factors must be finite and positive"):
        Hessian.of(torch.ones(2, 3)).scaled(torch.tensor([1.0, 0.0, 1.0]))
