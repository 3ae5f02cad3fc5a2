"""Charts as SVG, written by hand: a page of them needs no library, no network and no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from blade_llm.benchmark.report.charts import Chart, Series

_WIDTH: Final = 520
_HEIGHT: Final = 300
_LEFT: Final = 62
_RIGHT: Final = 16
_TOP: Final = 34
_BOTTOM: Final = 46
_TICKS: Final = 5


def draw(chart: Chart) -> str:
    """One ``<svg>`` element; colours come from the page's classes ``s0``, ``s1``, …"""
    points = [point for series in chart.series for point in series.points]
    xs = ticks(max((x for x, _ in points), default=1.0))
    ys = ticks(max((y for _, y in points), default=1.0))
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(chart.title)}">',
        f'<text class="title" x="{_LEFT}" y="18">{escape(chart.title)}</text>',
    ]
    bottom = _HEIGHT - _BOTTOM
    for value in xs:
        x = _across(value, xs[-1])
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{_number(value)}</text>')
    for value in ys:
        y = _up(value, ys[-1])
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="label" x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(chart.x)}</text>')
    high = (_TOP + bottom) / 2
    parts.append(
        f'<text class="label" x="14" y="{high}" text-anchor="middle" transform="rotate(-90 14 {high})">'
        f"{escape(chart.y)}</text>"
    )
    for number, series in enumerate(chart.series):
        parts.append(_series(series, number, xs[-1], ys[-1]))
    if len(chart.series) > 1:
        parts.append(_legend(chart.series))
    if not points:
        parts.append(f'<text class="label" x="{middle}" y="{high}" text-anchor="middle">nothing measured</text>')
    return "\n".join([*parts, "</svg>"])


def ticks(largest: float) -> list[float]:
    """Round numbers from 0 to at least ``largest``."""
    if not 0 < largest < math.inf:
        largest = 1.0
    power = 10.0 ** math.floor(math.log10(largest / _TICKS))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor * _TICKS >= largest * (1 - 1e-9))
    return [step * number for number in range(math.ceil(largest / step - 1e-9) + 1)]


def _series(series: Series, number: int, most_x: float, most_y: float) -> str:
    places = [(_across(x, most_x), _up(y, most_y)) for x, y in series.points]
    if not series.line:
        return "\n".join(f'<circle class="s{number}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="s{number}" points="{path}"/>'


def _legend(series: Sequence[Series]) -> str:
    entries = []
    for number, one in enumerate(series):
        x = _WIDTH - _RIGHT - 100 * (len(series) - number)
        entries.append(f'<circle class="s{number}" cx="{x + 8}" cy="14" r="4"/>')
        entries.append(f'<text class="tick" x="{x + 17}" y="18">{escape(one.name)}</text>')
    return "\n".join(entries)


def _across(value: float, most: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / most


def _up(value: float, most: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / most


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}" if value == 0 else f"{value:.4g}"
