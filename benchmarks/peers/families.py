"""Qwen3 and a mixture of experts beside the engines that compute them on a CPU.

``SHAPES``, ``ROWS`` and ``PEERS`` name parts (``SHAPES=qwen3-0.6b ROWS=decode PEERS=openvino,llama.cpp``): figures of
the other parts stay in the result's file as they were.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any, Final

from benchmarks.figures import QUICK, Figure, report
from benchmarks.peers import peers
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import OURS, Peer
from benchmarks.peers.rounds import Measure, alternate, decode, measured, prefill, throughput
from benchmarks.peers.running import Running, worker_options
from benchmarks.peers.selection import ROUNDS, selected
from benchmarks.peers.shapes import QWEN3, QWEN3_MOE, Shape
from blade_llm.kernels import native

ROWS: Final[dict[str, Measure]] = {"decode": decode, "throughput_16x128": throughput, "prefill_1024": prefill}
SHAPES: Final = {shape.name: shape for shape in (QWEN3, QWEN3_MOE)}
PEERS: Final = {
    peer.name: peer for peer in (peers.OPENVINO, peers.TRANSFORMERS, *(() if QUICK else (peers.VLLM, peers.LLAMA)))
}


def main() -> int:
    """Measure what is selected; each shape has a file of its own. The exit code: 1 when a target is missed."""
    codes = []
    for name in selected("SHAPES", list(SHAPES)):
        others = [PEERS[peer] for peer in selected("PEERS", list(PEERS))]
        codes.append(report(f"peers_{name}_{native.isa()}", family_figures(SHAPES[name], others), keep=True))
    return max(codes)


def family_figures(shape: Shape, others: list[Peer]) -> list[Figure]:
    """The rows of one shape: every engine, and ours beside the best of the others."""
    model = random_model(peers.CACHE / "models" / shape.name, shape)
    options: dict[str, Any] = worker_options(shape)
    figures: list[Figure] = []
    with ExitStack() as stack:
        engines = [stack.enter_context(Running(peer, model, **options)) for peer in (OURS, *others)]
        for what in selected("ROWS", list(ROWS)):
            row = measured(f"{shape.name} {what}", alternate(engines, ROWS[what], ROUNDS), "tok/s")
            best = max((peer.name for peer in others), key=row.median)
            figures += [Figure(f"{what}_{name}", row.median(name), "tok/s") for name in row.values]
            figures += [Figure(f"{what}_vs_best", row.ratio(OURS.name, best), "x", ">=", 1.0)]
            print(f"best of the others: {best}", file=sys.stderr)
    return figures


if __name__ == "__main__":
    sys.exit(main())
