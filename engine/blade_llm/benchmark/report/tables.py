"""The tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from blade_llm.benchmark.report.summary import Summary
from blade_llm.benchmark.statistics import Distribution
from blade_llm.benchmark.sweep import Probe

_COLUMNS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
_WIDTH: Final = 10
_LONGEST_EXAMPLE: Final = 100


def format_summary(summary: Summary) -> str:
    """Everything a person wants to know of one load."""
    return "\n".join([*_result(summary), "", *_latencies(summary), *_errors(summary), *_notes(summary.notes)])


def format_probe_head() -> str:
    """Above the lines of :func:`format_probe`."""
    return f"{'requests/s':>12} {'judged':>8} {'well served':>12} {'TTFT p90':>10} {'TPOT p90':>10} {'failed':>7}"


def format_probe(probe: Probe) -> str:
    """One rate tried."""
    verdict = "passes" if probe.passed else "fails, stopped early" if probe.cut_short else "fails"
    ttft, tpot = (f"{_ms(one.p90)} ms" if one else "-" for one in (probe.ttft, probe.tpot))
    share = f"{100 * probe.well_served:.1f} %"
    return f"{probe.rate:>12.2f} {probe.requests:>8} {share:>12} {ttft:>10} {tpot:>10} {probe.failed:>7}  {verdict}"


def _result(summary: Summary) -> list[str]:
    done = f"{summary.succeeded} succeeded, {summary.failed} failed in {summary.seconds:.2f} s"
    if summary.unfinished:
        done += f"; stopped with {summary.unfinished} on their way, which are left out"
    counted = {"usage": "by the server (usage)", "events": "as events with text", "mixed": "by the server or as events"}
    rows = [
        ("requests", done),
        ("throughput", f"{summary.requests_per_s:.2f} requests/s"),
        ("tokens in", f"{summary.input_tokens:,} = {summary.input_tokens_per_s:,.1f} tokens/s"),
        ("tokens out", f"{summary.output_tokens:,} = {summary.output_tokens_per_s:,.1f} tokens/s"),
        ("counted", counted[summary.counted_by]),
    ]
    if summary.goodput is not None:
        kept = f"{100 * summary.goodput.share:.1f} % kept {', '.join(summary.goodput.objectives)}"
        rows.append(("goodput", f"{summary.goodput.requests_per_s:.2f} requests/s: {kept}"))
    rows.append(("generator", f"{summary.generator_cpu:.0%} of a core"))
    return ["Result", *(f"  {name:<12}{value}" for name, value in rows)]


def _latencies(summary: Summary) -> list[str]:
    rows = [("TTFT", summary.ttft), ("TPOT", summary.tpot), ("ITL", summary.itl), ("E2E", summary.e2e)]
    head = f"{'Latency, ms':<14}" + "".join(f"{name:>{_WIDTH}}" for name in _COLUMNS)
    return [head, *(_row(name, one) for name, one in rows)]


def _row(name: str, values: Distribution | None) -> str:
    shown = ("-" if values is None else _ms(getattr(values, column)) for column in _COLUMNS)
    return f"  {name:<12}" + "".join(f"{value:>{_WIDTH}}" for value in shown)


def _errors(summary: Summary) -> list[str]:
    if not summary.errors:
        return []
    width = max(len(error.kind) for error in summary.errors)
    rows = (f"  {error.count:>6}  {error.kind:<{width}}  {_one_line(error.example)}" for error in summary.errors)
    return ["", "Errors", *rows]


def _notes(notes: Sequence[str]) -> Iterable[str]:
    return ["", "Notes", *(f"  - {note}" for note in notes)] if notes else []


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_EXAMPLE else line[: _LONGEST_EXAMPLE - 1] + "…"


def _ms(seconds: float) -> str:
    """Three digits that matter."""
    value = seconds * 1000
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
