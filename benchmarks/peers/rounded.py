"""Weights and activations in 8 bits (W8A8) beside bf16 in our own engine: what a prompt and many requests at once gain.

python -m benchmarks.peers.rounded        these rows of `make bench` alone
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure, report
from benchmarks.peers import peers
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import OURS, OURS_W8A8
from benchmarks.peers.rounds import Measure, alternate, measured, prefill, throughput
from benchmarks.peers.running import Running, worker_options
from benchmarks.peers.selection import ROUNDS
from benchmarks.peers.shapes import QWEN2
from blade_llm.kernels import native

MEASURES: Final[tuple[tuple[str, Measure, float], ...]] = (("prefill_1024", prefill, 1.4), ("16x128", throughput, 1.15))
"""What is measured, and how much faster it is to be."""


def rounded_figures(model: Path) -> list[Figure]:
    """Tokens a second of both, and their ratios."""
    options = worker_options(QWEN2)
    figures = []
    with Running(OURS, model, **options) as plain, Running(OURS_W8A8, model, **options) as rounded:
        for name, measure, target in MEASURES:
            row = measured(f"w8a8 {name}", alternate([plain, rounded], measure, ROUNDS), "tok/s")
            figures += [Figure(f"w8a8_{name}_{engine}", row.median(engine), "tok/s") for engine in row.values]
            ratio = row.ratio(OURS_W8A8.name, OURS.name)
            figures.append(Figure(f"w8a8_{name}_vs_bf16", ratio, "x", ">=", target))
    return figures


if __name__ == "__main__":
    found = rounded_figures(random_model(peers.CACHE / "models" / QWEN2.name))
    sys.exit(report(f"rounded_{native.isa()}", found))
