"""PART=quantization: the linear layers of a Llama-3-8B layer with quantised weights beside cuBLAS in bf16.

Each form of weights, at each number of rows: the products of a layer (queries with keys and values, output, gate with
up, down) as one CUDA graph, and the same in bf16, measured in turns from a cold cache. A figure above 1 is faster than
bf16. Results are compared with the product of the dequantised weight in fp32 before; a wrong one has no speed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.figures import Figure
from benchmarks.gpu.machine import DEVICE, DRY, Results, bandwidth, limits, median, replayed, seconds
from benchmarks.gpu.shapes import LLAMA, TINY
from blade_llm.kernels.linear.float8 import Float8Weight
from blade_llm.kernels.linear.gpu import pack
from blade_llm.kernels.linear.gpu.rounded import RoundedLinear, why_not_rounded
from blade_llm.kernels.linear.quantized import QuantizedWeight

DTYPE = torch.float16 if DRY else torch.bfloat16
"""The interpreter cannot multiply matrices of bf16."""
ROWS = (1, 65) if DRY else (1, 8, 16, 64, 128, 512)
TURNS = 1 if DRY else 3
TOLERANCE = 2e-2
ROUNDED_TOLERANCE = 6e-2
"""Activations of 8 bits are compared with those that were not rounded."""
MODEL = TINY if DRY else LLAMA
SHAPES = {
    "qkv": ((MODEL.heads + 2 * MODEL.kv_heads) * MODEL.head_dim, MODEL.hidden),
    "output": (MODEL.hidden, MODEL.heads * MODEL.head_dim),
    "gate_up": (2 * MODEL.inner, MODEL.hidden),
    "down": (MODEL.hidden, MODEL.inner),
}
"""Outputs and inputs."""


@dataclass(frozen=True)
class Form:
    """How a weight is quantised, and whether activations are rounded."""

    name: str
    bits: int = 8
    group_size: int | None = None
    symmetric: bool = True
    ordered: bool = False
    block: tuple[int | None, int | None] | None = None
    """Of e4m3; None for integers."""
    rounded: bool = False


FORMS = (
    Form("w4a16_g128", 4, 128, symmetric=False),
    Form("w4a16_g32", 4, 32),
    Form("w4a16_act_order", 4, 128, ordered=True),
    Form("w8a16", 8),
    Form("fp8_weights", block=(128, 128)),
    Form("w8a8_int8", 8, rounded=True),
    Form("w8a8_fp8", block=(1, None), rounded=True),
    Form("w8a8_fp8_blocks", block=(128, 128), rounded=True),
)


def main() -> int:
    results = Results("quantization")
    results.measure("limits", limits)
    layer = {name: _random(*shape) * shape[1] ** -0.5 for name, shape in SHAPES.items()}
    for form in FORMS:
        packed = {name: _packed(form, *SHAPES[name]) for name in SHAPES}
        if reason := next((reason for _, _, reason in packed.values() if reason), ""):
            print(f"{form.name}: not on this device: {reason}", file=sys.stderr)
            continue
        for rows in ROWS:
            results.measure(f"{form.name}_{rows}", _figures, form, rows, packed, layer)
    return results.finish()


def _figures(form: Form, rows: int, packed: dict[str, _Packed], layer: dict[str, Tensor]) -> Iterator[Figure]:
    xs = {name: _random(rows, inputs) for name, (_, inputs) in SHAPES.items()}
    tolerance = ROUNDED_TOLERANCE if form.rounded else TOLERANCE
    error = max(_error(linear(xs[name]), xs[name], weight) for name, (linear, weight, _) in packed.items())
    yield Figure(f"{form.name}_{rows}_error", error, "relative", "<=", tolerance)
    if error > tolerance:
        return
    parts = list(SHAPES) if form is FORMS[0] else []
    for part in [[name] for name in parts] + [list(SHAPES)]:
        label = f"{form.name}_{rows}" + (f"_{part[0]}" if len(part) == 1 else "")

        def ours(part: list[str] = part) -> None:
            for name in part:
                packed[name][0](xs[name])

        def bf16(part: list[str] = part) -> None:
            for name in part:
                F.linear(xs[name], layer[name])

        runs = [replayed(ours), replayed(bf16)]
        turns = [[seconds(run) for run in runs] for _ in range(TURNS)]
        took = median([own for own, _ in turns])
        yield Figure(f"{label}_over_bf16", median([plain / own for own, plain in turns]), "ratio")
        yield Figure(f"{label}_time", took * 1e6, "us")
        read = sum(packed[name][1].nbytes if form.bits > 4 else _halved(packed[name][1]) for name in part)
        yield Figure(f"{label}_of_copy", read / took / bandwidth(), "share")


_Weight = QuantizedWeight | Float8Weight
_Packed = tuple[Callable[[Tensor], Tensor], _Weight, str]
"""A layer, its weight, and why there is none, or nothing."""


def _packed(form: Form, outputs: int, inputs: int) -> _Packed:
    weight = _weight(form, outputs, inputs)
    if not form.rounded:
        return pack(weight, None, DTYPE, deterministic=False), weight, ""
    group_size = 128 if form.block == (128, 128) else None
    if reason := why_not_rounded(weight, group_size):
        return torch.nn.Identity(), weight, reason
    return RoundedLinear(weight, None, DTYPE, group_size=group_size), weight, ""


def _weight(form: Form, outputs: int, inputs: int) -> _Weight:
    generator = torch.Generator(DEVICE).manual_seed(outputs + inputs)
    if form.block is not None:
        block = form.block[0] or outputs, form.block[1] or inputs
        values = torch.randn(outputs, inputs, device=DEVICE, generator=generator).to(torch.float8_e4m3fn)
        scales = torch.full((-(-outputs // block[0]), -(-inputs // block[1])), inputs**-0.5, device=DEVICE)
        return Float8Weight(values, scales, block)
    group_size = min(form.group_size or inputs, inputs)
    groups = outputs, -(-inputs // group_size)
    levels = 2**form.bits
    integers = torch.randn(outputs, inputs, device=DEVICE, generator=generator) * levels / 6 + levels / 2
    middle = torch.full(groups, levels // 2, dtype=torch.uint8, device=DEVICE)
    return QuantizedWeight(
        bits=form.bits,
        integers=integers.round_().clamp_(0, levels - 1).to(torch.uint8),
        scales=torch.full(groups, 6 / levels * inputs**-0.5, dtype=torch.float16, device=DEVICE),
        zeros=None if form.symmetric else middle,
        group_size=group_size,
        order=torch.randperm(inputs, device=DEVICE, generator=generator) if form.ordered else None,
    )


def _halved(weight: _Weight) -> int:
    """Bytes of a weight of 4 bits, two of which are in a byte."""
    return weight.nbytes - weight.outputs * weight.inputs // 2


def _error(actual: Tensor, x: Tensor, weight: _Weight) -> float:
    expected = x.float() @ weight.dequantize().T
    return float((actual.float() - expected).norm() / expected.norm())


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(sum(shape))).to(DTYPE)


if __name__ == "__main__":
    sys.exit(main())
