"""This checkout's engine beside another's: ``make bench BEFORE=FOLDER``, where FOLDER is an earlier commit's checkout
(``git worktree add --detach FOLDER COMMIT``). Both run on this environment's packages.

They take turns as engines do (``rounds.py``), in shorter runs and more of them, so a ratio's quartiles say how far to
trust it; the best runs of both, those that nothing disturbed, are compared as well. ``ROWS=decode,ready``
measures some rows and keeps the other ones of the result's file; ``ROUNDS`` says how often.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
from pathlib import Path
from typing import Final, Literal

from benchmarks.figures import Figure, report
from benchmarks.peers import peers
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import OURS, OURS_INT4, OURS_INT8, Peer, earlier
from benchmarks.peers.rounds import Measure, Row, alternate, measured, prefill, short_decode, short_throughput
from benchmarks.peers.running import Running, worker_options
from benchmarks.peers.selection import ROUNDS, selected
from benchmarks.peers.shapes import QWEN2
from blade_llm.kernels import native

RATES: Final[dict[str, tuple[Peer, Measure]]] = {
    "decode": (OURS, short_decode),
    "throughput_16x64": (OURS, short_throughput),
    "prefill_1024": (OURS, prefill),
    "decode_int8": (OURS_INT8, short_decode),
    "decode_int4": (OURS_INT4, short_decode),
}
ROWS: Final = (*RATES, "ready", "peak_rss")
AT_LEAST: Final = 0.99
"""Of the earlier speed."""


def main() -> int:
    """Measure what is selected; the exit code: 1 when something has become slower or larger."""
    checkout = Path(os.environ["BEFORE"]).resolve()
    if not (checkout / "engine" / "blade_llm" / "__init__.py").exists():
        raise SystemExit(f"BEFORE: {checkout} is no checkout of this repository")
    model = random_model(peers.CACHE / "models" / QWEN2.name)
    rows = selected("ROWS", ROWS)
    figures: list[Figure] = []
    for ours in (OURS, OURS_INT8, OURS_INT4):
        rates = {name: measure for name, (peer, measure) in RATES.items() if peer is ours and name in rows}
        if rates:
            figures += _rates(model, ours, earlier(ours, checkout), rates)
    if "ready" in rows or "peak_rss" in rows:
        figures += _starts(model, earlier(OURS, checkout), rows)
    return report(f"before_after_{native.isa()}", figures, keep=True)


def _rates(model: Path, ours: Peer, before: Peer, rates: dict[str, Measure]) -> list[Figure]:
    options = worker_options(QWEN2)
    figures: list[Figure] = []
    with Running(ours, model, **options) as now, Running(before, model, **options) as then:
        for name, measure in rates.items():
            row = measured(name, alternate([now, then], measure, ROUNDS), "tok/s")
            figures += _figures(name, row, ours, before, "tok/s", ">=", AT_LEAST)
    return figures


def _starts(model: Path, before: Peer, rows: list[str]) -> list[Figure]:
    """From starting the process to its first response, and its memory after a prompt of 1,024 tokens."""
    ready, memory = Row(), Row()
    for number in range(ROUNDS):
        for peer in (OURS, before)[:: 1 if number % 2 else -1]:
            with Running(peer, model, **worker_options(QWEN2)) as engine:
                ready.values.setdefault(peer.name, []).append(engine.seconds_to_ready)
                if "peak_rss" in rows:
                    prefill(engine, random.Random(number))
                    memory.values.setdefault(peer.name, []).append(engine.peak_rss / 1e9)
    figures: list[Figure] = []
    for name, row, unit in (("ready", ready, "s"), ("peak_rss", memory, "GB")):
        if name in rows:
            figures += _figures(name, measured(name, row, unit), OURS, before, unit, "<=", 1 / AT_LEAST)
    return figures


def _figures(
    name: str, row: Row, ours: Peer, before: Peer, unit: str, relation: Literal[">=", "<="], target: float
) -> list[Figure]:
    ratios = row.ratios(ours.name, before.name)
    best = max if relation == ">=" else min
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return [
        Figure(f"{name}_now", row.median(ours.name), unit),
        Figure(f"{name}_before", row.median(before.name), unit),
        Figure(f"{name}_now_vs_before", median, "x", relation, target),
        Figure(f"{name}_now_vs_before_first_quartile", low, "x"),
        Figure(f"{name}_now_vs_before_third_quartile", high, "x"),
        Figure(f"{name}_best_now_vs_best_before", best(row.values[ours.name]) / best(row.values[before.name]), "x"),
        Figure(f"{name}_rounds", len(ratios), ""),
    ]


if __name__ == "__main__":
    sys.exit(main())
