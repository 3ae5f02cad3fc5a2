"""The cells: what factors they are made of, and how one is simulated."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.routing.policies import POLICIES
from benchmarks.routing.simulation import Conditions, Fleet, Result
from benchmarks.routing.workload import Trace, conversations, shared, unshared

FACTORS: dict[str, tuple[Any, ...]] = {
    "engines": (2, 4, 16, 64),
    "cache": (0.5, 1.0, 1.5, 4.0),
    "skew": (0.0, 0.8, 1.1, 1.4),
    "clients": (1, 8, 48, 256),
    "prefill": ("cheap", "dear"),
    "prompts": ("shared", "turns", "none"),
    "reported": ("exact", "absent", "zero", "cumulative", "foreign"),
    "slow": (False, True),
    "routers": (1, 3),
    "reports": (False, True),
    "chunked": (False, True),
}
"""``cache``: all caches together, as a multiple of the working set. ``slow``: one engine is half as fast. ``reports``:
engines push their load. ``chunked``: decodes slow prefills down."""
PREFILL = {"cheap": 0.0005, "dear": 0.006}
"""Seconds a block: 128,000 and 10,700 tokens a second."""
DECODE = 0.1
DECODE_SHARE = 0.02
GROUPS_PER_ENGINE = 16
MOST_GROUPS = 384


@dataclass(frozen=True)
class Cell:
    """One combination of factors."""

    engines: int
    cache: float
    skew: float
    clients: int
    prefill: str
    prompts: str
    reported: str
    slow: bool
    routers: int
    reports: bool
    chunked: bool
    name: str = ""

    def __str__(self) -> str:
        if self.name:
            return self.name
        flags = [word for word in ("slow", "reports", "chunked") if getattr(self, word)]
        return (
            f"e{self.engines} cache{self.cache:g} skew{self.skew:g} c{self.clients} {self.prefill} {self.prompts} "
            f"{self.reported} r{self.routers} {' '.join(flags)}".rstrip()
        )

    @property
    def groups(self) -> int:
        return min(MOST_GROUPS, self.engines * GROUPS_PER_ENGINE)

    def count(self) -> int:
        """Requests of a run: enough for each group to come back."""
        return 256 if self.name == SEQUENTIAL else max(2000, 8 * self.groups, 12 * self.clients)

    def trace(self, seed: int) -> Trace:
        rng = random.Random(zlib.crc32(f"{self} {seed}".encode()))
        count = self.count() + self.clients
        if self.name:
            return shared(rng, count, 64, 0.0, fixed=True)
        if self.prompts == "shared":
            return shared(rng, count, self.groups, self.skew)
        if self.prompts == "turns":
            return conversations(rng, count, self.groups, self.skew, self.clients)
        return unshared(rng, count, self.groups)

    def conditions(self, trace: Trace) -> Conditions:
        if self.name:
            return Conditions(
                cache_blocks=400,
                block_seconds=0.0015,
                decode_seconds=0.02,
                reported=self.reported,  # type: ignore[arg-type]
                whole=True,
            )
        return Conditions(
            cache_blocks=max(32, int(self.cache * trace.working_set / self.engines)),
            block_seconds=PREFILL[self.prefill],
            decode_seconds=DECODE,
            decode_share=DECODE_SHARE if self.chunked else 0.0,
            slowness=(2.0, 1.0) if self.slow else (1.0,),
            reported=self.reported,  # type: ignore[arg-type]
            reports=self.reports,
        )

    def run(self, policies: Iterable[str], seed: int = 0) -> dict[str, Result]:
        """Simulate the cell with each policy: the same prompts, the same engines."""
        trace = self.trace(seed)
        conditions = self.conditions(trace)
        return {
            name: Fleet(POLICIES[name], conditions, self.engines, self.routers, seed).run(
                trace, self.clients, self.count()
            )
            for name in policies
        }


SEQUENTIAL = "one at a time"


def _named(name: str, clients: int, reported: str = "exact", routers: int = 1) -> Cell:
    return Cell(4, 1.5, 0.0, clients, "1.5 ms", "shared", reported, False, routers, False, False, name)


NAMED = (
    _named("48 at once", 48),
    _named("48 at once, foreign tokens", 48, "foreign"),
    _named("48 at once, nothing reported", 48, "absent"),
    _named("48 at once, 3 routers", 48, routers=3),
    _named(SEQUENTIAL, 1),
)
"""The measured cases: 4 engines that cache 400 blocks each, 64 groups of 4,096 characters, 1.5 ms a block."""
