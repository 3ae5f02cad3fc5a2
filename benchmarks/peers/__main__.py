"""``make bench``: our engine beside the best CPU engines, with the same prompts, threads and KV cache.

A speed counts only for outputs that are right: the perplexity of a text is compared with fp32 first. ``PARTS`` names
parts of :data:`PARTS` (``PARTS=w4a16 make bench``): their figures get a file of their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.figures import QUICK, Figure, report
from benchmarks.peers import before, families, peers
from benchmarks.peers.model import random_model
from benchmarks.peers.peers import OURS, OURS_INT4, OURS_INT8, OURS_W4A16, Peer
from benchmarks.peers.quality import perplexity_figures
from benchmarks.peers.roofline import read_bandwidth, weight_bytes
from benchmarks.peers.rounded import rounded_figures
from benchmarks.peers.rounds import Row, alternate, decode, measured, prefill, throughput
from benchmarks.peers.running import Running, worker_options
from benchmarks.peers.selection import ROUNDS, selected
from benchmarks.peers.shapes import QWEN2
from benchmarks.peers.stalls import stall_figures
from blade_llm.kernels import native

OPTIONS = worker_options(QWEN2)
QUANTISED: Final = {
    "int8": (OURS_INT8, peers.LLAMA_Q8, 1.05),
    "int4": (OURS_INT4, peers.LLAMA_Q4, 1.05),
    "w4a16": (OURS_W4A16, peers.LLAMA_Q4_K, 1.1),
}
"""Our weights, llama.cpp's of as many bits, and by how much ours should be faster."""
PARTS: Final = ("quality", "stalls", "engines", "rounded", *(() if QUICK else QUANTISED), "families")


def main() -> int:
    if os.environ.get("BEFORE"):
        return before.main()
    parts = selected("PARTS", PARTS)
    codes = [qwen2(parts)] if set(parts) - {"families"} else []
    return max([*codes, *([families.main()] if "families" in parts else [])])


def qwen2(parts: Sequence[str]) -> int:
    """The rows that have targets beside each peer; the exit code."""
    model = random_model(peers.CACHE / "models" / QWEN2.name)
    figures = perplexity_figures() if "quality" in parts else []
    if "stalls" in parts:
        figures += stall_figures(model, threads=OPTIONS["threads"])
    if "engines" in parts:
        with ExitStack() as stack:
            others = [peers.OPENVINO, peers.TRANSFORMERS, peers.TRANSFORMERS_CB]
            others += [] if QUICK else [peers.VLLM, peers.LLAMA]
            engines = [stack.enter_context(Running(peer, model, **OPTIONS)) for peer in (OURS, *others)]
            figures += _compared(model, engines)
    if "rounded" in parts:
        figures += rounded_figures(model)
    for name, (ours, theirs, target) in QUANTISED.items():
        if name in parts:
            figures += _quantised(model, ours, theirs, target)
    named = "" if list(parts) == list(PARTS) else "_".join(part for part in parts if part != "families") + "_"
    return report(f"peers_{named}{native.isa()}", figures)


def _compared(model: Path, engines: Sequence[Running]) -> list[Figure]:
    named = {engine.peer.name: engine for engine in engines}
    ours, openvino, vllm = OURS.name, peers.OPENVINO.name, peers.VLLM.name
    single = measured("decode", alternate(engines, decode, ROUNDS), "tok/s")
    bandwidth = read_bandwidth()
    share = single.median(ours) * weight_bytes(model) / bandwidth
    # The target is 1.1 times OpenVINO, or 0.9 of the memory bandwidth where that is nearer.
    target = () if share >= 0.9 else (">=", 1.1)
    figures = [
        *_absolute("decode", single, "tok/s"),
        Figure("read_bandwidth", bandwidth / 1e9, "GB/s"),
        Figure("decode_share_of_read_bandwidth", share, "x"),
        Figure("decode_vs_openvino", single.ratio(ours, openvino), "x", *target),
    ]
    many = measured("16x128", alternate(engines, throughput, ROUNDS), "tok/s")
    figures += [*_absolute("throughput_16x128", many, "tok/s")]
    figures += [Figure("throughput_16x128_vs_openvino", many.ratio(ours, openvino), "x", ">=", 1.1)]
    prompt = measured("prefill", alternate(engines, prefill, ROUNDS), "tok/s")
    best = max((name for name in (openvino, vllm) if name in named), key=prompt.median)
    figures += _absolute("prefill_1024", prompt, "tok/s")
    figures += [Figure(f"prefill_1024_vs_{best}", prompt.ratio(ours, best), "x", ">=", 1.05)]
    figures += [Figure(f"ready_{name}", engine.seconds_to_ready, "s") for name, engine in named.items()]
    figures += [Figure("ready", named[ours].seconds_to_ready, "s", "<=", 5.0)]
    if vllm in named:
        share = named[ours].seconds_to_ready / named[vllm].seconds_to_ready
        figures += [Figure("ready_vs_vllm", share, "x", "<=", 0.1)]
    figures += [Figure(f"peak_rss_{name}", engine.peak_rss / 1e9, "GB") for name, engine in named.items()]
    ratio = named[ours].peak_rss / named[openvino].peak_rss
    return [*figures, Figure("peak_rss_vs_openvino", ratio, "x", "<=", 1.2)]


def _quantised(model: Path, ours: Peer, theirs: Peer, target: float) -> list[Figure]:
    with Running(ours, model, **OPTIONS) as mine, Running(theirs, model, **OPTIONS) as other:
        row = measured(f"{ours.name} decode", alternate([mine, other], decode, ROUNDS), "tok/s")
    name = f"decode_{ours.name.rpartition('-')[2]}"
    return [
        *_absolute(name, row, "tok/s"),
        Figure(f"{name}_vs_llama_cpp", row.ratio(ours.name, theirs.name), "x", ">=", target),
    ]


def _absolute(what: str, row: Row, unit: str) -> list[Figure]:
    return [Figure(f"{what}_{name}", row.median(name), unit) for name in row.values]


if __name__ == "__main__":
    sys.exit(main())
