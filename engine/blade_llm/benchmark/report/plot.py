"""Charts into a file: a self-contained HTML page, or a PNG where matplotlib is installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from blade_llm.benchmark.errors import BenchmarkError
from blade_llm.benchmark.report.charts import Chart
from blade_llm.benchmark.report.svg import draw

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #222; --dim: #777; --grid: #ddd; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --dim: #999; --grid: #3a3a3a; --paper: #1b1b1b; } }
body { font: 14px system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 24px; }
h1 { font-size: 18px; } pre { font-size: 12px; overflow-x: auto; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); gap: 16px; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
svg .title { font-weight: 600; font-size: 13px; } svg .tick, svg .label { fill: var(--dim); font-size: 11px; }
.grid { stroke: var(--grid); } polyline { fill: none; stroke-width: 2; }
.s0 { stroke: #2f6fde; fill: #2f6fde; } .s1 { stroke: #d9572b; fill: #d9572b; } polyline.s0, polyline.s1 { fill: none; }
circle { fill-opacity: 0.7; stroke: none; }
"""


def check_plot_file(file: Path) -> None:
    """Before the load, so that nothing is measured in vain. Raises :class:`BenchmarkError`."""
    if file.suffix not in (".html", ".png"):
        raise BenchmarkError(f"--plot {file}: name a file that ends in .html or .png")
    if file.suffix == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise BenchmarkError(f"--plot {file}: PNG needs matplotlib (pip install matplotlib); .html needs nothing")


def write_plot(file: Path, charts: Sequence[Chart], title: str, report: str) -> None:
    """``report`` (plain text) stands on the HTML page under the charts."""
    if file.suffix == ".png":
        _write_png(file, charts, title)
    else:
        file.write_text(html_page(charts, title, report), encoding="utf-8")


def html_page(charts: Sequence[Chart], title: str, report: str) -> str:
    """The page."""
    drawn = "\n".join(draw(chart) for chart in charts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n"
        f'<div class="charts">\n{drawn}\n</div>\n<pre>{escape(report)}</pre></body></html>\n'
    )


def _write_png(file: Path, charts: Sequence[Chart], title: str) -> None:
    figures = importlib.import_module("matplotlib.figure")

    rows = -(-len(charts) // 2)
    figure = figures.Figure(figsize=(12, 4 * rows), layout="constrained")
    figure.suptitle(title)
    for number, chart in enumerate(charts, 1):
        axes = figure.add_subplot(rows, 2, number)
        for series in chart.series:
            xs, ys = [x for x, _ in series.points], [y for _, y in series.points]
            axes.plot(xs, ys, "-" if series.line else ".", label=series.name)
        axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        if len(chart.series) > 1:
            axes.legend()
    figure.savefig(file)
