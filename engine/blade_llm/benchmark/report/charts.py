"""The charts of a run, whatever renders them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from blade_llm.benchmark.report.summary import Record, Summary
from blade_llm.benchmark.sweep import Probe

Points = Sequence[tuple[float, float]]
_MOST_POINTS: Final = 400
"""Most points of a curve; more cannot be seen."""
_MOST_DOTS: Final = 3000


@dataclass(frozen=True, slots=True)
class Series:
    """Points under one name."""

    name: str
    points: Points
    line: bool = True
    """Joined by a line, or dots."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One pair of axes, from zero."""

    title: str
    x: str
    y: str
    series: Sequence[Series]


def charts(summary: Summary | None, probes: Sequence[Probe] = ()) -> list[Chart]:
    """Distributions and the course of the load; of a sweep also latency and well-served share by rate."""
    return [*_of_probes(probes), *(_of_load(summary) if summary is not None else ())]


def cumulative(values: Sequence[float]) -> Points:
    """The share (in percent) of values that are at most x."""
    ordered = sorted(values)
    points = [(value, 100 * (place + 1) / len(ordered)) for place, value in enumerate(ordered)]
    return [*_thinned(points, _MOST_POINTS), points[-1]] if points else []


def _of_load(summary: Summary) -> list[Chart]:
    good = [record for record in summary.requests if record.error is None]
    ttft = [1000 * record.ttft for record in good if record.ttft is not None]
    tpot = [1000 * record.tpot for record in good if record.tpot is not None]
    e2e = [record.e2e for record in good]
    course = [(record.at, 1000 * record.ttft) for record in good if record.ttft is not None]
    failed = [(record.at, 0.0) for record in summary.requests if record.error is not None]
    dots = [Series("succeeded", _thinned(course, _MOST_DOTS), line=False)]
    if failed:
        dots.append(Series("failed", _thinned(failed, _MOST_DOTS), line=False))
    return [
        Chart("Time to first token", "ms", "% of requests", [Series("TTFT", cumulative(ttft))]),
        Chart("Time per output token", "ms", "% of requests", [Series("TPOT", cumulative(tpot))]),
        Chart("Whole answer", "s", "% of requests", [Series("E2E", cumulative(e2e))]),
        Chart(
            "Time to first token over the run",
            "s from the start",
            "ms",
            dots,
        ),
        Chart(
            "Requests on their way", "s from the start", "requests", [Series("in flight", _in_flight(summary.requests))]
        ),
    ]


def _of_probes(probes: Sequence[Probe]) -> list[Chart]:
    if not probes:
        return []
    ordered = sorted(probes, key=lambda probe: probe.rate)
    # Of a probe that was stopped, only the fast responses are known.
    whole = [probe for probe in ordered if not probe.cut_short]
    return [
        Chart(
            "Well served, by rate",
            "requests/s",
            "% of requests",
            [Series("well served", [(probe.rate, 100 * probe.well_served) for probe in ordered])],
        ),
        Chart(
            "Latency (p90), by rate",
            "requests/s",
            "ms",
            [
                Series("TTFT", [(probe.rate, 1000 * probe.ttft.p90) for probe in whole if probe.ttft]),
                Series("TPOT", [(probe.rate, 1000 * probe.tpot.p90) for probe in whole if probe.tpot]),
            ],
        ),
    ]


def _in_flight(records: Sequence[Record]) -> Points:
    changes = sorted([(record.at, 1) for record in records] + [(record.at + record.e2e, -1) for record in records])
    points: list[tuple[float, float]] = []
    now = 0
    for at, change in changes:
        points.append((at, float(now)))
        now += change
        points.append((at, float(now)))
    return _thinned(points, 2 * _MOST_POINTS)


def _thinned(points: Points, most: int) -> Points:
    return points[:: max(1, -(-len(points) // most))]
