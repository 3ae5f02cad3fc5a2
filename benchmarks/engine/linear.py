"""The linear layers of a whole model at several numbers of rows, native against oneDNN and plain torch.

Run it as ``python -m benchmarks.engine.linear [--threads N] [--rows N ...] [--candidates NAME ...]``. The shapes are
Qwen2.5-0.5B's; every matrix is a different one, as in a model, so that weights come from memory and not from a cache.
The candidates take turns, step by step, and the fastest product of each shape counts: what a quiet machine would do.
Trust ratios before milliseconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.figures import QUICK, Figure, report
from blade_llm.kernels import native
from blade_llm.kernels.linear import pack
from blade_llm.kernels.linear.activations import Activations
from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.native import (
    integers_matter,
    measure_integers,
    pack_float8,
    pack_quantized,
    set_always_integers,
)
from blade_llm.kernels.linear.packed import Quantization
from blade_llm.kernels.linear.quantized import QuantizedWeight
from blade_llm.kernels.linear.torch import OneDnnLinear
from blade_llm.weights.sources import NOISE_LENGTH

LAYER = ((1152, 896), (896, 896), (9728, 896), (896, 4864))
HEAD = (151936, 896)
LAYERS = 6 if QUICK else 24
"""QUICK computes a quarter of the model and multiplies by four."""
ROWS = (1, 4, 16, 64, 256) if QUICK else (1, 4, 16, 64, 256, 1024)
GROUP_SIZE = 64
"""Inputs that share a scale and a zero point in ``affine4`` and ``affine8``, as GPTQ and AWQ checkpoints have them."""
SECONDS = 2.0 if QUICK else 8.0
"""Measuring time of each number of rows."""
FLOAT8: dict[str, tuple[int, Activations | None]] = {
    "fp8": (0, None),
    "fp8_rounded": (0, Activations("fp8")),
    "fp8_blocks": (128, Activations("fp8", group_size=128)),
}
"""Inputs that share a scale (0: all of an output's), and how activations are rounded: weights alone, with one scale a
token, and as DeepSeek's checkpoints have both."""
CANDIDATES = ("torch", "onednn", "bf16", "int8", "int4", "w8a8", "affine4", "affine8", *FLOAT8)
W8A8_TARGETS = {16: 1.15, 256: 1.4, 1024: 1.4}
"""Speed of ``w8a8`` against our bf16 by number of rows, with AVX-512 and with AMX."""
TARGETS = {1: 1.3, 4: 1.3, 16: 1.1, 64: 1.0, 256: 1.0, 1024: 1.0}
"""Speed against oneDNN's packed weights by number of rows."""

Product = Callable[[Tensor], Tensor]


def weights() -> list[Tensor]:
    """Different matrices, cut from one sequence of random numbers."""
    noise = torch.randn(NOISE_LENGTH).mul_(0.02).bfloat16()
    shapes = [*LAYER * LAYERS, (HEAD[0] * LAYERS // 24, HEAD[1])]
    result, start = [], 0
    for outputs, inputs in shapes:
        repeats = -(-(start + outputs * inputs) // len(noise))
        result.append(noise.repeat(repeats)[start : start + outputs * inputs].reshape(outputs, inputs).clone())
        start = (start + 12_345) % len(noise)
    return result


def candidates(matrices: list[Tensor], names: Sequence[str]) -> dict[str, tuple[list[Product], int]]:
    """What is compared: for each of ``names`` the layers and their bytes."""
    result: dict[str, tuple[list[Product], int]] = {}
    if "torch" in names:
        plain: list[Product] = [lambda x, w=w: F.linear(x, w) for w in matrices]  # type: ignore[misc]
        result["torch"] = (plain, sum(w.nbytes for w in matrices))
    if "onednn" in names:
        onednn = [OneDnnLinear(weight, None) for weight in matrices]
        result["onednn"] = (list(onednn), sum(linear.nbytes for linear in onednn))
    quants: tuple[Quantization, ...] = ("none", "int8", "int4", "w8a8")
    for quant in quants:
        if ("bf16" if quant == "none" else quant) not in names:
            continue
        start = time.perf_counter()
        packed = [linear for weight in matrices if (linear := pack(weight, None, quant)) is not None]
        print(f"packed {quant} in {time.perf_counter() - start:.1f} s", flush=True)
        result["bf16" if quant == "none" else quant] = (list(packed), sum(linear.nbytes for linear in packed))
    for bits in (4, 8):
        if f"affine{bits}" not in names:
            continue
        affine = [linear for weight in matrices if (linear := pack_quantized(affine_weight(weight, bits), None, False))]
        result[f"affine{bits}"] = (list(affine), sum(linear.nbytes for linear in affine))
    for name, (size, activations) in FLOAT8.items():
        if name not in names:
            continue
        made = [pack_float8(float8_weight(weight, size, activations), None, False) for weight in matrices]
        floats = [linear for linear in made if linear is not None]
        result[name] = (list(floats), sum(linear.nbytes for linear in floats))
    return result


def float8_weight(weight: Tensor, size: int, activations: Activations | None) -> Float8Weight:
    """``weight`` as e4m3, in square blocks of ``size`` or with one scale an output."""
    if not size:
        scales = weight.float().abs().amax(1, keepdim=True) / 448
        return Float8Weight((weight / scales).to(torch.float8_e4m3fn), scales, (1, weight.shape[1]), activations)
    scales = torch.full([-(-length // size) for length in weight.shape], float(weight.abs().max()) / 448)
    return Float8Weight((weight / scales[0, 0]).to(torch.float8_e4m3fn), scales, (size, size), activations)


def affine_weight(weight: Tensor, bits: int) -> QuantizedWeight:
    """``weight`` rounded to even levels between the least and the largest of each group."""
    groups = weight.float().unflatten(1, (-1, GROUP_SIZE))
    least, most = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    scales = ((most - least) / (2**bits - 1)).half()
    zeros = (-least / scales).round()
    integers = (groups / scales + zeros).round().clamp_(0, 2**bits - 1)
    return QuantizedWeight(bits, integers.flatten(1).byte(), scales[..., 0], zeros[..., 0].byte(), GROUP_SIZE)


def fastest_steps(layers: dict[str, list[Product]], matrices: list[Tensor], rows: int) -> dict[str, float]:
    """Seconds of each candidate's step: the fastest product of each shape, times how many there are."""
    inputs = {columns: torch.randn(rows, columns).bfloat16() for columns in {w.shape[1] for w in matrices}}
    shapes = [tuple(weight.shape) for weight in matrices]
    best = {name: dict.fromkeys(shapes, float("inf")) for name in layers}
    end = time.perf_counter() + SECONDS
    turns = 0
    while turns < 3 or time.perf_counter() < end:
        for name, products in layers.items():
            for product, shape in zip(products, shapes, strict=True):
                start = time.perf_counter()
                product(inputs[shape[1]])
                best[name][shape] = min(best[name][shape], time.perf_counter() - start)
        turns += 1
    return {name: sum(fastest[shape] for shape in shapes) for name, fastest in best.items()}


def _present(seconds: dict[str, float], against: str, *names: str) -> list[str]:
    """Those of ``names`` that were measured, where ``against`` was, too."""
    return [name for name in names if name in seconds and against in seconds]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, choices=tuple(TARGETS))
    parser.add_argument("--candidates", nargs="+", default=CANDIDATES, choices=CANDIDATES, help="what is compared")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"instruction set {native.isa()}, {torch.get_num_threads()} threads", flush=True)
    matrices = weights()
    compared = candidates(matrices, arguments.candidates)
    if integers_matter():
        always = measure_integers()
        set_always_integers(always)
        print(f"many rows by quantised weights are multiplied {'as integers' if always else 'in bf16'}", flush=True)
    layers = {name: products for name, (products, _) in compared.items()}
    flops = 2.0 * sum(weight.numel() for weight in matrices)
    figures: list[Figure] = []
    for rows in arguments.rows:
        seconds = fastest_steps(layers, matrices, rows)
        before = len(figures)
        for name, step in seconds.items():
            rate, unit = (
                (compared[name][1] / step / 1e9, "GB/s") if rows <= 64 else (flops * rows / step / 1e12, "TFLOP/s")
            )
            figures.append(Figure(f"linear_{name}_{rows}_ms", step * 24 / LAYERS * 1e3, "ms"))
            figures.append(Figure(f"linear_{name}_{rows}_rate", rate, unit))
        for name in _present(seconds, "onednn", "bf16", "int8", "int4", "affine4", "affine8"):
            ratio = seconds["onednn"] / seconds[name]
            goal = (">=", TARGETS[rows]) if name == "bf16" and native.isa() == "amx" else ("", 0.0)
            figures.append(Figure(f"linear_{name}_{rows}_vs_onednn", ratio, "x", *goal))
        for name in _present(seconds, "bf16", "int8", "w8a8", *FLOAT8):
            held = name == "w8a8" and native.isa() in ("avx512_bf16", "amx") and rows in W8A8_TARGETS
            goal = (">=", W8A8_TARGETS[rows]) if held else ("", 0.0)
            figures.append(Figure(f"linear_{name}_{rows}_vs_bf16", seconds["bf16"] / seconds[name], "x", *goal))
        for bits in (4, 8):
            if not _present(seconds, f"int{bits}", f"affine{bits}"):
                continue
            ratio = seconds[f"int{bits}"] / seconds[f"affine{bits}"]
            figures.append(Figure(f"linear_affine{bits}_{rows}_vs_int{bits}", ratio, "x"))
        print(*figures[before:], sep="\n", flush=True)
    return report("engine_linear", figures)


if __name__ == "__main__":
    sys.exit(main())
