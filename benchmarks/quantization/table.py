"""What must hold of the perplexities, and the table that is printed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.figures import Figure
from benchmarks.quantization.methods import BASELINE, METHODS

LEAST_LOSS: Final = 1e-4
"""Nats a token; what loses less counts as if it lost so much."""


@dataclass(frozen=True)
class Bound:
    """``row`` is at most, or at least, ``times`` the perplexity of ``other``."""

    row: str
    other: str = BASELINE
    times: float = 1.0
    relation: str = "<="

    @property
    def name(self) -> str:
        return f"{self.row}-to-{self.other}"

    def figure(self, perplexities: Mapping[str, float | None], model: str) -> Figure | None:
        """The measured ratio and its target; None when one of the two rows has no number."""
        mine, other = perplexities.get(self.row), perplexities.get(self.other)
        if mine is None or other is None:
            return None
        return Figure(f"{model}-{self.name}", mine / other, "x", self.relation, self.times)


@dataclass(frozen=True)
class LossBound:
    """``row`` loses at least ``times`` as much over the baseline, in nats a token, as ``other``."""

    row: str
    other: str
    times: float

    @property
    def name(self) -> str:
        return f"loss-of-{self.row}-to-{self.other}"

    @property
    def relation(self) -> str:
        return ">="

    def figure(self, perplexities: Mapping[str, float | None], model: str) -> Figure | None:
        """The measured ratio and its target; None when a row has no number."""
        mine, other, baseline = (perplexities.get(each) for each in (self.row, self.other, BASELINE))
        if mine is None or other is None or baseline is None:
            return None
        least = max(math.log(other / baseline), LEAST_LOSS)
        return Figure(f"{model}-{self.name}", math.log(mine / baseline) / least, "x", ">=", self.times)


BOUNDS: Final[tuple[Bound | LossBound, ...]] = (
    Bound("gptq-4", "minmax-4"),
    Bound("awq-4", "minmax-4"),
    Bound("smoothquant+-4", "minmax-4"),
    Bound("gptq-4", times=1.09),
    Bound("gptq-4-head", times=1.09),
    Bound("w8a8-smoothquant", "w8a8-minmax"),
    Bound("w8a8-smoothquant", times=1.02),
    Bound("w8a8-smoothquant_gptq", times=1.02),
    Bound("gptq-3", times=1.42),
    LossBound("minmax-3", "gptq-3", 2.0),
    Bound("kv-int8", times=1.005),
    Bound("kv-int4", times=1.04),
)
"""3 bits: of LLaMA-7B (Frantar et al., arXiv 2210.17323) 5.68 unquantised, 8.07 by GPTQ, 1.42 times as much, and 25.54
to the nearest, 4.3 times GPTQ's loss. Perplexity itself explodes where 32 layers add up their errors; a model of three
layers shows the ratio of the losses alone, and half of it has to be there."""


def table(perplexities: Mapping[str, float | None]) -> list[str]:
    """Lines of Markdown: each row's perplexity, and how much it is above the baseline's."""
    baseline = perplexities.get(BASELINE)
    lines = ["| | perplexity | change |", "|---|---|---|"]
    for method in METHODS:
        if method.name not in perplexities:
            continue
        value = perplexities[method.name]
        if value is None:
            lines.append(f"| {method.what} | not available | |")
            continue
        change = f"{100 * (value / baseline - 1):+.2f} %" if baseline is not None else ""
        lines.append(f"| {method.what} | {value:.3f} | {change} |")
    return lines


def figures_of(perplexities: Mapping[str, float | None], model: str) -> list[Figure]:
    """Each row's perplexity, for the file of results."""
    return [
        Figure(f"{model}-{name}-perplexity", value, "") for name, value in perplexities.items() if value is not None
    ]


def verdicts(
    perplexities: Mapping[str, float | None], model: str, bounds: Sequence[Bound | LossBound]
) -> tuple[list[str], list[Figure], bool]:
    """A line for each bound, the figures, and whether all bounds are met. One without a number is not."""
    lines, figures, met = [], [], True
    for bound in bounds:
        figure = bound.figure(perplexities, model)
        holds = figure is not None and math.isfinite(figure.value) and figure.reached
        value = "not available" if figure is None else f"{figure.value:.4f}"
        lines.append(f"{'met   ' if holds else 'MISSED'} {bound.name} {value} {bound.relation} {bound.times:g}")
        figures += [figure] if figure is not None else []
        met = met and holds
    return lines, figures, met
