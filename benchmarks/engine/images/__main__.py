"""Pictures on a CPU: ``python -m benchmarks.engine.images``.

The model is a random one of Qwen2-VL-2B's shape in bf16: its whole vision tower (32 layers of width 1280), with 4 of
the 28 layers of its text model. ``ROWS`` chooses among

* ``streams``: p99 of the time between tokens of four streams of text while 20 pictures of 4 megapixels come, five at
  once, against the p99 without them, before and after each five. The tower has 2 layers here: pieces are as large as
  with 32, and the run ends.
* ``cached``: a second question about a picture: prompt tokens of what the first had that are computed again, and runs
  of the encoder.
* ``peer``: the time to the first token, and pictures a second, beside transformers in the same process: the same
  weights, pixels and threads. Ours, transformers' and ours once more are measured in turn, round after round; the
  median of the ratios of a round counts, and the ratio of the two of ours is the noise. transformers' pixels are
  normalised and cut beforehand; ours come as bytes.

Their embeddings are compared first. ``QUICK=1``: fewer and smaller pictures, 4 layers.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import torch

from benchmarks.engine.images.asking import difference, ours, peers
from benchmarks.engine.images.model import TEXT_LAYERS, TOWER_LAYERS, build, picture
from benchmarks.engine.images.streams import cached_figures, stream_figures
from benchmarks.figures import QUICK, Figure, report
from benchmarks.peers.selection import selected
from blade_llm.engine.core import EngineCore
from blade_llm.kernels import native
from blade_llm.runner.startup.threads import usable_cores

ROWS = ("streams", "cached", "peer")
STREAM_LAYERS = 1 if QUICK else 2
LAYERS = 4 if QUICK else TOWER_LAYERS
SIZES = (
    (("0.2mp", 448, 4, 3), ("1mp", 1008, 1, 2))
    if QUICK
    else (("0.2mp", 448, 8, 5), ("1mp", 1008, 2, 3), ("4mp", 1988, 1, 1))
)
"""Name, pixels on each side, pictures at once, rounds."""
FASTER = 1.1
DIFFERENCE = 0.02
"""Between our embeddings and transformers', both in bf16, relative to their size."""


def main() -> int:
    rows = selected("ROWS", ROWS)
    threads = usable_cores()
    torch.set_num_threads(threads)
    print(f"instruction set {native.isa()}, {threads} threads", flush=True)
    figures: list[Figure] = []
    if "streams" in rows or "cached" in rows:
        core = build(STREAM_LAYERS, threads).core
        if "streams" in rows:
            figures += _printed(stream_figures(core))
        if "cached" in rows:
            figures += _printed(cached_figures(core))
    if "peer" in rows:
        figures += peer_figures(threads)
    about = {
        "isa": native.isa(),
        "threads": str(threads),
        "tower_layers": f"{LAYERS}, of streams and cached {STREAM_LAYERS}",
        "text_layers": f"{TEXT_LAYERS} of 28",
        "torch": str(torch.__version__),
    }
    return report("images", figures, keep=True, **about)


def peer_figures(threads: int) -> list[Figure]:
    """Ours beside transformers', and beside ours once more."""
    import transformers

    sides = build(LAYERS, threads, with_peer=True)
    print(f"transformers {transformers.__version__}", flush=True)
    wrong = difference(sides.core, sides.peer, picture(448, 1))
    figures = _printed([Figure("embeddings_differ", wrong, "relative", "<=", DIFFERENCE)])
    for name, side, at_once, rounds in SIZES:
        for count in sorted({1, at_once}):
            measured = [_round(sides.core, sides.peer, side, count, number) for number in range(rounds)]
            figures += _printed(_compared(f"{name}_{count}", count, measured))
    return figures


def _round(core: EngineCore, model: Any, side: int, count: int, number: int) -> dict[str, float]:
    """Seconds of each of the three, who take turns in being first."""
    turn = number % 3
    order = ["ours", "transformers", "again"]
    seconds = {}
    for name in order[turn:] + order[:turn]:
        images = [picture(side, 1000 * number + index) for index in range(count)]
        seconds[name] = peers(model, images) if name == "transformers" else ours(core, images)
    return seconds


def _compared(name: str, count: int, rounds: list[dict[str, float]]) -> list[Figure]:
    """``count`` pictures at once: one is the time to the first token, several are pictures a second."""
    ratios = [each["transformers"] / statistics.mean((each["ours"], each["again"])) for each in rounds]
    noise = statistics.median(max(each["ours"] / each["again"], each["again"] / each["ours"]) for each in rounds)
    medians = {side: statistics.median(each[side] for each in rounds) for side in ("ours", "transformers")}
    what, unit = ("ttft", "s") if count == 1 else ("pictures", "pictures/s")
    values = medians if count == 1 else {side: count / seconds for side, seconds in medians.items()}
    return [
        *(Figure(f"{name}_{what}_{side}", value, unit) for side, value in values.items()),
        Figure(f"{name}_{what}_noise", noise, "x"),
        Figure(f"{name}_{what}_least", min(ratios), "x as fast as transformers"),
        Figure(f"{name}_{what}_ratio", statistics.median(ratios), "x as fast as transformers", ">=", FASTER),
    ]


def _printed(figures: list[Figure]) -> list[Figure]:
    print(*figures, sep="\n", flush=True)
    return figures


if __name__ == "__main__":
    sys.exit(main())
