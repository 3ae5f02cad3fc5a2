"""``make bench-routing``: ``auto`` beside other routers' rules and an oracle, in simulated time.

Without arguments a covering design of all triples of the factors. ``--pairs`` is shorter; ``--shard 0/1000`` is a part
of the full grid. Ends with exit code 1 when what must hold does not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.routing.cell import NAMED, Cell
from benchmarks.routing.comparison import REGRET, Row, average, mean_ratio
from benchmarks.routing.design import covering, grid
from benchmarks.routing.policies import OURS, PEERS, POLICIES
from benchmarks.routing.simulation import Result
from benchmarks.routing.tables import cell_table, heat_map, named_table, overall_table, summary

PAGE = Path(__file__).parents[2] / "docs" / "routing-policies.md"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing", description=__doc__)
    parser.add_argument("--pairs", action="store_true", help="all pairs of factors only")
    parser.add_argument("--shard", default="", help="PART/PARTS of the full grid instead")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--design", type=int, default=1, help="seed of the design")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    if options.shard:
        part, _, parts = options.shard.partition("/")
        cells = list(grid(int(part), int(parts)))
    else:
        cells = covering(2 if options.pairs else 3, options.design)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows = list(_rows([*NAMED, *cells], seeds, options.jobs))
    named, rest = rows[: len(NAMED)], rows[len(NAMED) :]
    parts_of_page = {
        "named": list(named_table(named)),
        "overall": [*overall_table(rest), "", summary(rest)],
        "map": ["```", *heat_map(rest), "```"],
        "cells": list(cell_table(rows)),
    }
    for lines in parts_of_page.values():
        print(*lines, "", sep="\n")
    print(f"{len(rows)} cells, {options.seeds} seeds, {time.perf_counter() - started:.0f} s")
    if options.write:
        _write(parts_of_page)
    return 0 if _must_hold(rows) else 1


def _rows(cells: Sequence[Cell], seeds: Sequence[int], jobs: int) -> Iterator[Row]:
    work = [(cell, seed) for cell in cells for seed in seeds]
    if jobs > 1:
        with ProcessPoolExecutor(jobs) as pool:
            runs = list(pool.map(_run, work, chunksize=4))
    else:
        runs = [_run(each) for each in work]
    for at, cell in enumerate(cells):
        yield Row(cell, average(runs[at * len(seeds) : (at + 1) * len(seeds)]))


def _run(work: tuple[Cell, int]) -> dict[str, Result]:
    cell, seed = work
    return cell.run(POLICIES, seed)


def _must_hold(rows: Sequence[Row]) -> bool:
    ahead = all(
        mean_ratio([row.goodput() / row.goodput(peer) for row in rows]) >= 1.0
        and mean_ratio([row.p99() / row.p99(peer) for row in rows]) <= 1.0
        for peer in PEERS
    )
    regrets = sorted(row.regret(OURS) for row in rows)
    return ahead and all(row.holds() for row in rows) and regrets[len(regrets) // 2] <= REGRET


def _write(parts: dict[str, list[str]]) -> None:
    """Replace what stands between the page's marks."""
    page = PAGE.read_text(encoding="utf-8")
    for name, lines in parts.items():
        mark = f"<!-- {name} -->\n"
        before, _, rest = page.partition(mark)
        after = rest[rest.index("<!-- end -->") :]
        page = before + mark + "\n" + "\n".join(lines).strip() + "\n\n" + after
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
