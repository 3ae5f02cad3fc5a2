"""Routers measured in turn, round by round, so that what else the machine does hits all of them alike."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.figures import QUICK, Figure
from benchmarks.router.engines import Engine, fleet
from benchmarks.router.load import Wrong
from benchmarks.router.routers import Kind, Router, interpreted, ours, peer, started
from blade_router.compiled.sources import find

Values = dict[str, float]
Measure = Callable[[Router, list[Engine]], Awaitable[Values]]
Results = dict[str, list[Values]]
"""Values of every round, by the router's name."""


@dataclass(frozen=True)
class Context:
    """The settings of all rows."""

    peers: Sequence[str]

    def kinds(
        self, *options: str, round_robin: bool = False, internal: bool = False, both_forms: bool = False
    ) -> list[Kind]:
        """Ours with ``auto`` and these options, and the peers with their prefix policy.

        ``internal``: ours uses the engines' internal routes too, as it does in production. ``both_forms``: ours also
        interpreted, where it is compiled.
        """
        policies = ("cache_aware", "round_robin") if round_robin else ("cache_aware",)
        blade = ours(*options, internal=internal)
        again = [interpreted(blade)] if both_forms and find() is not None else []
        return [blade, *again, *(peer(name, policy) for name in self.peers for policy in policies)]


@dataclass(frozen=True)
class Goal:
    """How a value is reported. ``relation`` also says which of several rounds is the best one."""

    unit: str
    relation: str
    target: float | None = None
    ratio: tuple[str, float] | None = None
    """A peer, and the target for our value divided by its."""


async def side_by_side(
    kinds: Sequence[Kind], measure: Measure, rounds: int = 2 if QUICK else 3, **engine: object
) -> Results:
    """All routers started, each before engines of its own, then measured in turn."""
    results: Results = {kind.name: [] for kind in kinds}
    async with contextlib.AsyncExitStack() as stack:
        running = []
        for kind in kinds:
            engines = await stack.enter_async_context(fleet(**engine))  # type: ignore[arg-type]
            running.append((await stack.enter_async_context(started(kind, engines)), engines))
        for _ in range(rounds):
            for router, engines in running:
                await _measure(router, engines, measure, results)
    return results


async def one_by_one(
    kinds: Sequence[Kind], measure: Measure, rounds: int = 1 if QUICK else 3, **engine: object
) -> Results:
    """As `side_by_side`, with a fresh router before fresh engines for each measurement."""
    results: Results = {kind.name: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            async with fleet(**engine) as engines, started(kind, engines) as router:  # type: ignore[arg-type]
                await _measure(router, engines, measure, results)
    return results


async def _measure(router: Router, engines: list[Engine], measure: Measure, results: Results) -> None:
    """Measure once. A peer that responds wrongly drops out; ours must not.

    Raises:
        Wrong: ours responded wrongly.
    """
    name = router.kind.name
    if name not in results:
        return
    try:
        results[name].append(await measure(router, engines))
    except Wrong as error:
        if not router.kind.peer:
            raise
        print(f"failed: {name}: {error}", flush=True)
        del results[name]


def figures(row: str, results: Results, goals: Mapping[str, Goal]) -> list[Figure]:
    """The best of each router's rounds, and the median over the rounds of ours divided by each peer's."""
    (our_name, mine), *theirs = results.items()
    made = []
    for name, goal in goals.items():
        best = max if goal.relation == ">=" else min
        target = () if goal.target is None else (goal.relation, goal.target)
        made.append(Figure(f"{row}_{name}", best(values[name] for values in mine), goal.unit, *target))
        for peer_name, values in theirs:
            made.append(Figure(f"{row}_{name}_of_{peer_name}", best(each[name] for each in values), goal.unit))
            if all(each[name] for each in values):
                ratio = statistics.median(a[name] / b[name] for a, b in zip(mine, values, strict=True))
                wanted = (goal.relation, goal.ratio[1]) if goal.ratio and goal.ratio[0] == peer_name else ()
                made.append(Figure(f"{row}_{name}_{our_name}_by_{peer_name}", ratio, "x", *wanted))
    return made
