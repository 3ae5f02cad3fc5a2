"""Plots as SVG that are readable on white and on black: the rate and the engines over time, and what each policy
reaches for how much."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.scaling.engine import SETTLED
from benchmarks.scaling.rows import Row, mean_attainment, mean_hours
from benchmarks.scaling.traces import Trace

FOLDER: Final = Path(__file__).parents[2] / "docs" / "pictures"
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 220, 46, 26, 30
GREY, COLOURS = "#888888", ("#3b82c4", "#d9822b", "#3f9c5a", "#b05bb0", "#c94f4f", "#8a7a2e", "#4aa3a3", "#777777")


def write(traces: Sequence[Trace], first: Sequence[Row], rows: Sequence[Row], lines: tuple[str, str]) -> None:
    """``scaling-NAME.svg`` for each trace, of ``first``, with the engines of two policies, ``lines``;
    ``scaling-policies.svg`` of all ``rows``."""
    for trace in traces:
        counts = {row.policy: row.counts for row in first if row.trace == trace.name and row.policy in lines}
        (FOLDER / f"scaling-{trace.name}.svg").write_text(over_time(trace, counts), encoding="utf-8")
    (FOLDER / "scaling-policies.svg").write_text(cost_and_attainment(rows, lines[1]), encoding="utf-8")


def over_time(trace: Trace, counts: dict[str, tuple[tuple[float, int], ...]]) -> str:
    """Requests a second (grey, to its own scale) and engines (steps) in minutes."""
    most = max(count for each in counts.values() for at, count in each if at >= SETTLED) + 1
    high = max(trace.rate(SETTLED + at) for at in range(0, int(trace.seconds - SETTLED), 15)) * 1.1

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * max(0.0, at - SETTLED) / (trace.seconds - SETTLED)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    times = range(int(SETTLED), int(trace.seconds), 15)
    rate = " ".join(f"{x(at):.0f},{y(trace.rate(at) / high):.0f}" for at in times)
    parts = [f'<polyline points="{rate}" fill="none" stroke="{GREY}" stroke-opacity="0.6"/>']
    for colour, steps in zip(COLOURS, counts.values(), strict=False):
        last = [count for at, count in steps if at <= SETTLED][-1]
        path = f"M{LEFT} {y(last / most):.0f}"
        for at, count in steps:
            if SETTLED < at <= trace.seconds:
                path += f"H{x(at):.0f}V{y(count / most):.0f}"
        parts.append(f'<path d="{path}H{WIDTH - 10}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
    labels = [(GREY, "requests/s"), *zip(COLOURS, counts, strict=False)]
    parts += [_text(LEFT + 130 * index, 14, name, colour) for index, (colour, name) in enumerate(labels)]
    parts += [
        _text(LEFT - 8, y(count / most) + 4, str(count), GREY, "end") for count in range(0, most + 1, max(1, most // 5))
    ]
    minutes = range(0, int((trace.seconds - SETTLED) / 60) + 1, 10)
    parts += [_text(x(SETTLED + 60 * each), HEIGHT - 12, f"{each} min", GREY, "middle") for each in minutes]
    return _svg(f"{trace.name}: requests a second, and engines", parts)


def cost_and_attainment(rows: Sequence[Row], oracle: str) -> str:
    """Replica-hours over the oracle's (x) and the share of requests in time (y); a point for each policy and trace."""
    names = list(dict.fromkeys(row.policy for row in rows if row.policy != oracle))
    traces = list(dict.fromkeys(row.trace for row in rows))
    low, left, right = 0.7, 0.8, 3.0

    def x(cost: float) -> float:
        return LEFT + (WIDTH - LEFT - 150) * (min(right, cost) - left) / (right - left)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (max(low, share) - low) / (1.0 - low)

    parts = [
        f'<path d="M{x(left):.0f} {y(0.95):.0f}H{x(right):.0f}M{x(1.25):.0f} {y(low):.0f}V{y(1.0):.0f}" '
        f'stroke="{GREY}" stroke-dasharray="3 3" fill="none"/>'
    ]
    for index, (colour, name) in enumerate(zip(COLOURS, names, strict=False)):
        for trace in traces:
            cost = mean_hours(rows, trace, name) / mean_hours(rows, trace, oracle)
            parts.append(
                f'<circle cx="{x(cost):.0f}" cy="{y(mean_attainment(rows, trace, name)):.0f}" r="4" fill="{colour}"/>'
            )
        parts.append(_text(WIDTH - 140, TOP + 10 + 18 * index, name, colour))
    parts += [_text(x(each / 4), HEIGHT - 12, f"{each / 4:g} x", GREY, "middle") for each in range(4, 13, 2)]
    parts += [_text(LEFT - 8, y(each / 100) + 4, f"{each} %", GREY, "end") for each in (70, 80, 90, 95, 100)]
    return _svg("requests in time, and replica-hours over the oracle's", parts)


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}">{text}</text>'


def _svg(title: str, parts: Sequence[str]) -> str:
    box, font = f'viewBox="0 0 {WIDTH} {HEIGHT}"', 'font-family="sans-serif" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} {font}>'
    return "\n".join([head, f"<title>{title}</title>", *parts, "</svg>", ""])
