"""Quantisation against public implementations: ``python -m benchmarks.engine.quantization_peers``.

The same layers and activations go through this package and through compressed-tensors (grids, fp8), llm-compressor
(GPTQ with static groups, SmoothQuant), AutoGPTQ (GPTQ with scales of corrected groups, its search of ranges) and
AutoAWQ (search of scales and of clipping). Figures: the share of weights that come out the same, and ratios of relative
output errors. A package that is not installed is left out and said. Their requirements differ, so they need an
environment of their own: ``pip install --no-deps llmcompressor==0.14.0.1 compressed-tensors==0.19.0 loguru accelerate
datasets nvidia-ml-py multiprocess dill pyarrow pandas xxhash``, and auto-gptq 0.7.1 and the source of autoawq 0.2.9,
unpacked, on ``PYTHONPATH``.

Inputs are correlated, some are outliers, and weights have heavy tails, as in language models.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
import time
import types
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from benchmarks.figures import QUICK, Figure, report
from blade_llm.quantization.awq import search_scales
from blade_llm.quantization.clipping import least_output_error, least_weight_error
from blade_llm.quantization.float8 import Float8Scaling, quantize_float8
from blade_llm.quantization.gptq import GptqOptions, gptq
from blade_llm.quantization.grid import Grid, weight_ranges
from blade_llm.quantization.hessian import Hessian
from blade_llm.quantization.input_statistics import InputStatistics
from blade_llm.quantization.minmax import minmax
from blade_llm.quantization.report import layer_error, output_energy
from blade_llm.quantization.smoothquant import smoothing_scales

OUTPUTS, INPUTS, TOKENS = (256, 512, 2048) if QUICK else (512, 1024, 4096)
GROUP = 128
WITHIN = 1.01
"""Errors may be larger than a peer's by this ratio."""


def layer(seed: int = 0) -> tuple[Tensor, Tensor]:
    """A weight ([out, in]) and activations ([tokens, in]) in fp32."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    common = normal(TOKENS, INPUTS // 4) @ normal(INPUTS // 4, INPUTS) / (INPUTS // 4) ** 0.5
    x = common + 0.2 * normal(TOKENS, INPUTS)
    x[:, torch.randperm(INPUTS, generator=generator)[: INPUTS // 100]] *= 20
    return normal(OUTPUTS, INPUTS) * normal(OUTPUTS, INPUTS).mul(0.5).exp() * 0.02, x


def error_of(weight: Tensor, other: Tensor, hessian: Hessian) -> float:
    """Relative squared output error."""
    error = layer_error(weight, other, hessian).output
    assert error is not None
    return error


def same(ours: Tensor, theirs: Tensor) -> float:
    """The share of equal elements."""
    return float((ours == theirs).double().mean())


def arguments(grid: Grid, **more: Any) -> Any:
    """compressed-tensors' description of a grid."""
    from compressed_tensors.quantization import QuantizationArgs

    return QuantizationArgs(
        num_bits=grid.bits,
        symmetric=grid.symmetric,
        strategy="group" if grid.group_size else "channel",
        group_size=grid.group_size,
        **more,
    )


def parameters(weight: Tensor, grid: Grid) -> tuple[Tensor, Tensor, Any]:
    """compressed-tensors' scales and zero points ([out, groups])."""
    from compressed_tensors.quantization.utils import calculate_qparams

    groups = weight.reshape(len(weight), -1, grid.group_of(weight.shape[1]))
    args = arguments(grid)
    scales, zeros = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    return scales, zeros, args


def grids(weight: Tensor) -> list[Figure]:
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize

    figures = []
    for bits in (3, 4, 8):
        for symmetric in (True, False):
            for size in (None, GROUP):
                grid = Grid(bits, size, symmetric)
                scales, zeros, args = parameters(weight, grid)
                ours = minmax(weight, grid)
                name = f"grid-{bits}-{'symmetric' if symmetric else 'asymmetric'}-{size or 'channel'}"
                theirs = fake_quantize(weight, scales, zeros, args)
                worst = float((ours.scales - scales).abs().max() / scales.max())
                figures += [
                    Figure(f"{name}-same-weights", same(ours.dequantize(), theirs), "share", ">=", 1.0),
                    Figure(f"{name}-scales-differ", worst, "relative", "<=", 0.0),
                ]
    return figures


def float8(weight: Tensor) -> list[Figure]:
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    figures = []
    scalings: list[Float8Scaling] = ["tensor", "channel", "block"]
    for scaling in scalings:
        extra: dict[str, Any] = {"block_structure": [128, 128]} if scaling == "block" else {}
        args = QuantizationArgs(num_bits=8, type="float", symmetric=True, strategy=scaling, **extra)
        if scaling == "block":
            tiles = weight.reshape(len(weight) // 128, 128, -1, 128)
            low, high = tiles.amin((1, 3)), tiles.amax((1, 3))
        elif scaling == "channel":
            low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        else:
            low, high = weight.amin(), weight.amax()
        scales, zeros = calculate_qparams(low, high, args)
        theirs = quantize(weight, scales, zeros, args, dtype=torch.float8_e4m3fn)
        ours = quantize_float8(weight, scaling)
        figures.append(
            Figure(f"fp8-{scaling}-same-values", same(ours.values.float(), theirs.float()), "share", ">=", 1.0)
        )
    return figures


def gptq_of_llm_compressor(weight: Tensor, hessian: Hessian) -> list[Figure]:
    from compressed_tensors.quantization import ActivationOrdering
    from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight

    figures = []
    for bits in (3, 4):
        for symmetric in (True, False):
            for size in (None, GROUP):
                for act_order in (False, True):
                    grid = Grid(bits, size, symmetric)
                    scales, zeros, args = parameters(weight, grid)
                    args = arguments(grid, actorder=ActivationOrdering.WEIGHT if act_order else None)
                    start = time.perf_counter()
                    theirs = quantize_weight(
                        weight.clone()[None], hessian.matrix.clone()[None], scales[None], zeros[None], None, args
                    )[0][0]
                    middle = time.perf_counter()
                    ours = gptq(weight, hessian, grid, GptqOptions(act_order=act_order, static_groups=True)).weight
                    end = time.perf_counter()
                    errors = [error_of(weight, each, hessian) for each in (ours.dequantize(), theirs)]
                    name = f"gptq-{bits}-{'symmetric' if symmetric else 'asymmetric'}-{size or 'channel'}"
                    name += "-act-order" if act_order else ""
                    nearest = error_of(weight, minmax(weight, grid).dequantize(), hessian)
                    figures += [
                        Figure(f"{name}-error", errors[0], "relative"),
                        Figure(f"{name}-error-to-peer", errors[0] / errors[1], "ratio", "<=", WITHIN),
                        Figure(f"{name}-error-to-nearest", errors[0] / nearest, "ratio", "<=", 1.0),
                        Figure(f"{name}-same-weights", _close(ours.dequantize(), theirs), "share"),
                        Figure(f"{name}-time-to-peer", (end - middle) / (middle - start), "ratio"),
                    ]
    return figures


def gptq_of_autogptq(weight: Tensor, x: Tensor, hessian: Hessian) -> list[Figure]:
    figures = []
    for bits, symmetric, size, act_order, searched in (
        (4, True, GROUP, False, False),
        (4, True, GROUP, True, False),
        (4, False, GROUP, True, False),
        (3, True, GROUP, True, True),
        (3, False, None, False, True),
    ):
        grid = Grid(bits, size, symmetric)
        linear = nn.Linear(weight.shape[1], len(weight), bias=False).requires_grad_(False)
        linear.weight.data = weight.clone()
        peer = _autogptq()(linear)
        peer.quantizer.configure(bits, perchannel=True, sym=symmetric, mse=searched)
        peer.add_batch(x, None)
        with mock.patch("torch.cuda.synchronize"):
            scales, _, _ = peer.fasterquant(group_size=size or -1, actorder=act_order)
        search = least_weight_error if searched else weight_ranges
        ours = gptq(weight, hessian, grid, GptqOptions(act_order=act_order), search).weight
        errors = [error_of(weight, each, hessian) for each in (ours.dequantize(), linear.weight)]
        name = f"autogptq-{bits}-{'symmetric' if symmetric else 'asymmetric'}-{size or 'channel'}"
        name += ("-act-order" if act_order else "") + ("-search" if searched else "")
        figures += [
            Figure(f"{name}-error", errors[0], "relative"),
            Figure(f"{name}-error-to-peer", errors[0] / errors[1], "ratio", "<=", WITHIN),
            Figure(f"{name}-same-weights", _close(ours.dequantize(), linear.weight), "share"),
            Figure(f"{name}-same-scales", _close(ours.scales, scales), "share"),
        ]
    return figures


def _autogptq() -> Any:
    """Its class, without its package's own import: that needs a transformers of 2024."""
    found = importlib.util.find_spec("auto_gptq")
    assert found is not None
    package = types.ModuleType("auto_gptq")
    package.__path__ = list(found.submodule_search_locations or ())
    with mock.patch.dict(sys.modules, {"auto_gptq": package}):
        return importlib.import_module("auto_gptq.quantization.gptq").GPTQ


def awq_of_autoawq(weight: Tensor, x: Tensor, hessian: Hessian) -> list[Figure]:
    from awq.quantize.quantizer import AwqQuantizer

    figures = []
    statistics = InputStatistics.of(x)
    for weights_too in (False, True):
        grid = Grid(4, GROUP, symmetric=False)
        peer = AwqQuantizer.__new__(AwqQuantizer)
        peer.w_bit, peer.group_size, peer.zero_point = grid.bits, GROUP, True
        peer.duo_scaling, peer.max_chunk_memory, peer.n_parallel_calib_samples = weights_too, 1 << 30, None
        linear = nn.Linear(weight.shape[1], len(weight), bias=False).requires_grad_(False)
        linear.weight.data = weight.clone()
        groups = weight.reshape(len(weight), -1, GROUP).abs()
        mean_w = (groups / (groups.amax(-1, keepdim=True) + 1e-6)).reshape(weight.shape).mean(0)
        theirs = peer._compute_best_scale(x, mean_w, statistics.mean, linear, [linear], x @ weight.T)
        ours = search_scales([weight], hessian, statistics.mean, grid, weights_too=weights_too)
        errors = [
            error_of(weight, minmax(weight * scales, grid).dequantize() / scales, hessian)
            for scales in (ours.scales, theirs)
        ]
        name = f"awq-{'weights-too' if weights_too else 'paper'}"
        figures += [
            Figure(f"{name}-alpha", ours.alpha, "exponent"),
            Figure(f"{name}-error", errors[0], "relative"),
            Figure(f"{name}-error-to-peer", errors[0] / errors[1], "ratio", "<=", WITHIN),
            Figure(f"{name}-error-to-nearest", errors[0] / ours.errors[0], "ratio"),
        ]
    kept = peer._compute_best_clip(weight, x, n_sample_token=TOKENS).reshape(len(weight), -1)
    ranges = least_output_error(weight, grid, hessian)
    clamped = weight.reshape(len(weight), -1, GROUP).clamp(-kept[..., None], kept[..., None]).reshape(weight.shape)
    ours_wrong = (grid.quantize(weight, ranges).dequantize() - weight, grid.quantize(clamped).dequantize() - weight)
    by_group = [_of_groups(each, hessian) for each in ours_wrong]
    figures.append(Figure("awq-clip-group-error-to-peer", by_group[0] / by_group[1], "ratio", "<=", WITHIN))
    return figures


def smoothquant_of_llm_compressor(weight: Tensor, x: Tensor) -> list[Figure]:
    from llmcompressor.modifiers.transform.smoothquant.base import SmoothQuantModifier

    figures = []
    most = InputStatistics.of(x).most
    for alpha in (0.5, 0.85):
        linear = nn.Linear(weight.shape[1], len(weight), bias=False).requires_grad_(False)
        linear.weight.data = weight
        peer = SmoothQuantModifier(smoothing_strength=alpha)
        # It takes a layer's range, not its maximum: twice as much for each input alike, so only the unit differs.
        theirs = peer._calculate_smoothing_scales([linear], 2 * most) / 2 ** (2 * alpha - 1)
        worst = float((smoothing_scales([weight], most, alpha) / theirs - 1).abs().max())
        figures.append(Figure(f"smoothquant-{alpha}-scales-differ", worst, "relative", "<=", 1e-5))
    return figures


def main() -> int:
    weight, x = layer()
    hessian = Hessian.of(x)
    figures: list[Figure] = []
    for packages, measure in (
        (["compressed_tensors"], lambda: grids(weight) + float8(weight)),
        (["compressed_tensors", "llmcompressor"], lambda: gptq_of_llm_compressor(weight, hessian)),
        (["llmcompressor"], lambda: smoothquant_of_llm_compressor(weight, x)),
        (["auto_gptq"], lambda: gptq_of_autogptq(weight, x, hessian)),
        (["awq"], lambda: awq_of_autoawq(weight, x, hessian)),
    ):
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            print(f"left out: {' and '.join(packages)}: {' and '.join(missing)} cannot be imported")
        else:
            figures += measure()
    if not figures:
        return 1
    return report("quantization_peers", figures, **_versions())


def _close(ours: Tensor, theirs: Tensor) -> float:
    """The share of weights that are the same multiple of nearly the same scale."""
    return float(((ours - theirs).abs() <= 1e-5 * theirs.abs().max()).double().mean())


def _of_groups(wrong: Tensor, hessian: Hessian) -> float:
    """Output error with groups taken one by one, as the search of clipping sees it."""
    blocks = torch.block_diag(*hessian.blocks(GROUP))
    return output_energy(wrong, Hessian(blocks, hessian.tokens))


def _versions() -> dict[str, str]:
    known = {"torch": str(torch.__version__)}
    for name in ("compressed-tensors", "llmcompressor"):
        try:
            known[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return known


if __name__ == "__main__":
    raise SystemExit(main())
