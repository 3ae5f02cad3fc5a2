"""The tables of ``docs/routing-policies.md``, and its heat map, as text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.routing.cell import FACTORS
from benchmarks.routing.comparison import Row, mean_ratio
from benchmarks.routing.policies import ORACLE, OURS, POLICIES
from benchmarks.routing.simulation import Result


def named_table(rows: Sequence[Row]) -> Iterator[str]:
    """Figures of the measured cases."""
    for row in rows:
        yield f"\n**{row.cell}**\n"
        yield "| policy | requests/s | p50 ms | p99 ms | hits | busiest engine | copies |"
        yield "|---|---|---|---|---|---|---|"
        for name, result in row.results.items():
            yield f"| {name} | {_figures(result)} |"


def _figures(result: Result) -> str:
    return (
        f"{result.goodput:.1f} | {result.p50 * 1e3:.1f} | {result.p99 * 1e3:.1f} | {result.hit_rate:.3f} | "
        f"{result.imbalance:.2f} | {result.copies:.2f}"
    )


def overall_table(rows: Sequence[Row]) -> Iterator[str]:
    """Each policy over all cells."""
    yield "| policy | goodput / best other | p99 / best other | worst goodput | worst p99 | median regret |"
    yield "|---|---|---|---|---|---|"
    for name in POLICIES:
        goodput, p99 = [row.goodput(name) for row in rows], [row.p99(name) for row in rows]
        regret = statistics.median(row.regret(name) for row in rows)
        yield (
            f"| {name} | {mean_ratio(goodput):.3f} | {mean_ratio(p99):.3f} | {min(goodput):.3f} | {max(p99):.2f} | "
            f"{regret * 100:.1f} % |"
        )


def heat_map(rows: Sequence[Row]) -> Iterator[str]:
    """Median goodput beside the oracle's, by each factor's level and policy; a letter shows how much is missing."""
    names = [name for name in POLICIES if name != ORACLE]
    yield f"{'':18}" + "".join(f"{name:>15}" for name in names)
    for factor, levels in FACTORS.items():
        for level in levels:
            found = [row for row in rows if not row.cell.name and getattr(row.cell, factor) == level]
            if found:
                values = (statistics.median(1.0 - row.regret(name) for row in found) for name in names)
                yield f"{factor + ' ' + str(level):18}" + "".join(f"{_shade(value):>15}" for value in values)


def _shade(share: float) -> str:
    lost = 1.0 - share
    mark = next((mark for limit, mark in ((0.01, " "), (0.03, "░"), (0.1, "▒"), (0.3, "▓")) if lost <= limit), "█")
    return f"{share * 100:6.1f} {mark}"


def cell_table(rows: Sequence[Row]) -> Iterator[str]:
    """Ours in every cell, the worst first."""
    yield "| cell | goodput / best other | p99 / best other | regret | best by goodput |"
    yield "|---|---|---|---|---|"
    for row in sorted(rows, key=lambda row: min(row.goodput() / 0.97, 1.1 / row.p99())):
        best = max(row.results, key=lambda name: row.results[name].goodput)
        mark = "" if row.holds() else " ✗"
        yield f"| {row.cell}{mark} | {row.goodput():.3f} | {row.p99():.2f} | {row.regret() * 100:.1f} % | {best} |"


def summary(rows: Sequence[Row]) -> str:
    held = sum(row.holds() for row in rows)
    goodput, p99 = sum(row.goodput() >= 0.97 for row in rows), sum(row.p99() <= 1.1 for row in rows)
    regret = statistics.median(row.regret(OURS) for row in rows) * 100
    return (
        f"{held} of {len(rows)} cells hold (goodput in {goodput}, p99 in {p99}); "
        f"median regret to the oracle {regret:.1f} %"
    )
