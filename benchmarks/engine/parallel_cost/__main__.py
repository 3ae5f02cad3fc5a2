"""Print the tables of docs/parallel.md: ``python -m benchmarks.engine.parallel_cost [--model NAME] [--gpu NAME]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from benchmarks.engine.parallel_cost.hardware import GPUS, H100, H200, Measured, Network
from benchmarks.engine.parallel_cost.models import CONFIGS
from benchmarks.engine.parallel_cost.published import ALL_REDUCES, VLLM, Point
from benchmarks.engine.parallel_cost.step import Setting, decode, prefill
from blade_llm.models.errors import UnsupportedModelError
from blade_llm.parallel.layout import RankLayout

LAYOUTS: Final = {
    "tp 1": RankLayout(1),
    "tp 2": RankLayout(2),
    "tp 4": RankLayout(4),
    "tp 8": RankLayout(8),
    "tp 8 x pp 2, 2 machines": RankLayout(8, 2, 2),
    "tp 16, 2 machines": RankLayout(16, 1, 2),
}
BATCHES: Final = (1, 32, 256)
PROMPTS: Final = (2048, 8192)
DEFAULTS: Final = {"DeepSeek-V3": (H200, 1.0)}
"""GPU and bytes of a weight where they are not an H100 and 2: the model would not fit."""


def rows(setting: Setting, context: int) -> Iterator[str]:
    """A table of one model: a row for each layout that divides and fits it, and for each NIC count between machines."""
    yield (
        "| layout | "
        + " | ".join(f"TPOT of {batch}, ms" for batch in BATCHES)
        + " | tok/s of 256 | "
        + " | ".join(f"TTFT of {tokens:,}, ms" for tokens in PROMPTS)
        + " |"
    )
    yield "|---" * (2 + len(BATCHES) + len(PROMPTS)) + "|"
    for name, layout in LAYOUTS.items():
        networks = [setting.network] if layout.nodes == 1 else [setting.network, replace(setting.network, nics=1)]
        for network in networks:
            each = replace(setting, layout=layout, network=network)
            if layout.nodes > 1:
                name = f"{name.partition(' of ')[0]} of {network.nics} x 400 Gb/s"
            if (row := _row(each, context)) is not None:
                yield f"| {name} | {row} |"


def _row(setting: Setting, context: int) -> str | None:
    try:
        if not setting.fits(0):
            return None
    except UnsupportedModelError:
        return None
    cells = []
    own = replace(setting, own_kernels=True)
    for batch in BATCHES:
        if not setting.fits(batch * context):
            cells.append("does not fit")
            continue
        today = decode(setting, batch, context)
        cells.append(
            f"{today.tpot * 1e3:.1f}{_faster(today.tpot, decode(own, batch, context).tpot)} {today.cost.bound}"
        )
    fits = setting.fits(BATCHES[-1] * context)
    cells.append(f"{decode(setting, BATCHES[-1], context).throughput:,.0f}" if fits else "-")
    for tokens in PROMPTS:
        first = prefill(setting, tokens)
        bubble = f", bubbles {first.bubble:.2f}" if first.bubble > 0 else ""
        faster = _faster(first.ttft, prefill(own, tokens).ttft)
        cells.append(f"{first.ttft * 1e3:.0f}{faster} {first.cost.bound}{bubble}")
    return " | ".join(cells)


def _faster(today: float, own: float) -> str:
    return f" ({own * 1e3:.1f})" if own < 0.995 * today else ""


def terms(setting: Setting, batch: int, context: int) -> Iterator[str]:
    """What a decode of ``batch`` consists of, by layout, in milliseconds of one stage."""
    yield f"| layout, {batch} requests | weights | KV cache | products | all-reduces | one-/two-shot | gaps | host |"
    yield "|---" * 8 + "|"
    for name, layout in LAYOUTS.items():
        each = replace(setting, layout=layout)
        try:
            if not each.fits(batch * context):
                continue
        except UnsupportedModelError:
            continue
        cost = decode(each, batch, context).cost
        own = decode(replace(each, own_kernels=True), batch, context).cost
        seconds = (cost.weights, cost.kv, cost.products, cost.collectives, own.collectives, cost.gaps, cost.host)
        yield f"| {name} | " + " | ".join(f"{value * 1e3:.2f}" for value in seconds) + " |"


def comparison(points: Sequence[Point]) -> Iterator[str]:
    """Published figures beside the model's."""
    yield "| what | published | model | model / published |"
    yield "|---|---|---|---|"
    for point in points:
        value = point.model()
        yield (
            f"| [{point.what}]({point.source}) | {point.published:g} {point.unit} | {value:.3g} {point.unit} "
            f"| {value / point.published:.2f} |"
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=CONFIGS, action="append", help="one of the models (default: all)")
    parser.add_argument("--gpu", choices=GPUS, help="(default: H100; of DeepSeek-V3 H200)")
    parser.add_argument("--weight_bytes", type=float, help="of a weight (default: 2; of DeepSeek-V3 1)")
    parser.add_argument("--nics", type=int, default=8, help="400 Gb/s network cards of a machine")
    parser.add_argument("--context", type=int, default=1024, help="tokens before each decode")
    options = parser.parse_args(argv)
    measured = Measured.read()
    print(
        f"Of the data sheet's rates {measured.bandwidth_share:.2f} of the bandwidth and {measured.flops_share:.2f} of "
        f"the bf16 peak; {measured.layer_gap * 1e6:.0f} us between the kernels of a layer; "
        f"{measured.host_64 * 1e3:.2f} ms of the host for 64 decodes. In parentheses: with all-reduces of our own."
    )
    for name in options.model or CONFIGS:
        gpu, weight_bytes = DEFAULTS.get(name, (H100, 2.0))
        gpu = GPUS[options.gpu] if options.gpu else gpu
        setting = Setting(name, RankLayout(), gpu, Network(options.nics), options.weight_bytes or weight_bytes)
        print(
            f"\n{name}, {gpu.name}, {setting.weight_bytes:g} bytes a weight, contexts of {options.context:,} tokens\n"
        )
        print(*rows(setting, options.context), sep="\n")
        for batch in BATCHES[:2]:
            print("", *terms(setting, batch, options.context), sep="\n")
    for points in (ALL_REDUCES, VLLM):
        print("", *comparison(points), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
