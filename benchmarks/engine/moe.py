"""A mixture-of-experts layer of Qwen3-30B-A3B's shape beside a loop over experts in torch and torch's grouped product.

Run it as ``python -m benchmarks.engine.moe [--threads N]``. Weights are random, so tokens spread over the experts about
evenly. Every number of tokens is measured with several inputs, which are routed differently, so that a decode reads
experts that are not in the cache. The candidates take turns, and the fastest run of each input counts: what a quiet
machine would do. All of them compute routing, experts and the sum; a speed counts only for a result that agrees with
the loop's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.figures import QUICK, Figure, report
from blade_llm.kernels import native
from blade_llm.kernels.linear.packed import Quantization
from blade_llm.kernels.moe_routing import torch as routing
from blade_llm.layers.linear import LinearOptions
from blade_llm.layers.moe import MoE, MoEWeights
from blade_llm.spec.moe import MoESpec, RoutingSpec

EXPERTS, TOP_K, HIDDEN, INNER = (32, 8, 512, 192) if QUICK else (128, 8, 2048, 768)
TOKENS = (1, 4, 16, 64, 256) if QUICK else (1, 4, 16, 64, 256, 1024)
SECONDS = 1.0 if QUICK else 8.0
"""Measuring time of each number of tokens."""
INPUTS = 4
BOUNDS = {"bf16": 0.02, "int8": 0.03, "int4": 0.15, "grouped_mm": 0.02}
"""Relative error to the loop in bf16."""

Layer = Callable[[Tensor], Tensor]
SPEC = MoESpec(RoutingSpec(EXPERTS, TOP_K, renormalize=True), INNER)


class Plain:
    """The layer's tensors, and what torch can do with them."""

    def __init__(self) -> None:
        torch.manual_seed(0)

        def random(*shape: int) -> Tensor:
            return (torch.randn(shape) * shape[-1] ** -0.5).bfloat16()

        self.router = random(EXPERTS, HIDDEN)
        self.gate_up, self.down = random(EXPERTS, 2 * INNER, HIDDEN), random(EXPERTS, HIDDEN, INNER)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs of tokens and places sorted by expert, tokens of each expert, and weights."""
        ids, weights = routing.route(F.linear(x, self.router), SPEC.routing, None)
        return ids.flatten().argsort(stable=True), ids.flatten().bincount(minlength=EXPERTS), weights

    def loop(self, x: Tensor) -> Tensor:
        """One expert after the other, those without tokens left out."""
        order, counts, weights = self.route(x)
        out = torch.zeros(x.shape)
        for expert, pairs in enumerate(order.split(counts.tolist())):
            if not len(pairs):
                continue
            tokens = pairs // TOP_K
            gate, up = F.linear(x[tokens], self.gate_up[expert]).chunk(2, dim=-1)
            result = F.linear(F.silu(gate) * up, self.down[expert])
            out.index_add_(0, tokens, result * weights.flatten()[pairs, None])
        return out.to(x.dtype)

    def grouped_mm(self, x: Tensor) -> Tensor:
        """``torch.nn.functional.grouped_mm`` for both products."""
        order, counts, weights = self.route(x)
        ends = counts.cumsum(0).int()
        gate, up = F.grouped_mm(x[order // TOP_K], self.gate_up.transpose(1, 2), offs=ends).chunk(2, dim=-1)
        results = F.grouped_mm(F.silu(gate) * up, self.down.transpose(1, 2), offs=ends)
        by_pair = torch.empty_like(results)
        by_pair[order] = results
        return (by_pair.view(len(x), TOP_K, HIDDEN) * weights[..., None]).sum(1).to(x.dtype)


def candidates() -> dict[str, Layer]:
    """Every way to compute the layer, ours by the form of the weights."""
    plain = Plain()
    layers: dict[str, Layer] = {"loop": plain.loop}
    if hasattr(F, "grouped_mm"):
        layers["grouped_mm"] = plain.grouped_mm
    quants: tuple[Quantization, ...] = ("none", "int8", "int4")
    for quant in quants:
        weights = MoEWeights(plain.router, zip(plain.gate_up, plain.down, strict=True))
        start = time.perf_counter()
        layers["bf16" if quant == "none" else quant] = MoE(SPEC, weights, LinearOptions(quant))
        print(f"packed {quant} in {time.perf_counter() - start:.1f} s", flush=True)
    return layers


def fastest(layers: dict[str, Layer], inputs: list[Tensor]) -> dict[str, float]:
    """Seconds of each layer: the mean over the inputs of the fastest run."""
    best = {name: [float("inf")] * len(inputs) for name in layers}
    end = time.perf_counter() + SECONDS
    turns = 0
    while turns < 2 or time.perf_counter() < end:
        for index, x in enumerate(inputs):
            for name, layer in layers.items():
                start = time.perf_counter()
                layer(x)
                best[name][index] = min(best[name][index], time.perf_counter() - start)
        turns += 1
    return {name: sum(times) / len(times) for name, times in best.items()}


def agree(layers: dict[str, Layer]) -> bool:
    x = torch.randn(40, HIDDEN).bfloat16()
    expected = layers["loop"](x).float()
    for name, bound in BOUNDS.items():
        if name in layers:
            error = float((layers[name](x).float() - expected).norm() / expected.norm())
            if error > bound:
                print(f"{name}: the result differs by {error:.3f}", file=sys.stderr)
                return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    torch.set_num_threads(parser.parse_args().threads)
    print(f"instruction set {native.isa()}, {torch.get_num_threads()} threads", flush=True)
    layers = candidates()
    if not agree(layers):
        return 1
    figures = []
    for tokens in TOKENS:
        inputs = [torch.randn(tokens, HIDDEN).bfloat16() for _ in range(INPUTS)]
        seconds = fastest(layers, inputs)
        for name, took in seconds.items():
            figures.append(Figure(f"moe_{name}_{tokens}_rate", tokens / took, "tokens/s"))
        figures += [
            Figure(f"moe_bf16_{tokens}_vs_{name}", seconds[name] / seconds["bf16"], "x", ">=", 1.0)
            for name in ("loop", "grouped_mm")
            if name in seconds
        ]
        print(f"{tokens} tokens:", *(f"{name} {took * 1e3:.2f} ms" for name, took in seconds.items()), flush=True)
    return report("moe", figures, isa=native.isa(), threads=str(torch.get_num_threads()))


if __name__ == "__main__":
    sys.exit(main())
