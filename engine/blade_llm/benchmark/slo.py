"""Service level objectives: which latency a request has to keep to count as well served.

Goodput (Zhong et al., DistServe, OSDI 2024) is the rate of requests that keep all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from blade_llm.benchmark.client.measurement import Measurement

METRICS: Final = ("ttft", "tpot", "e2e")
_LIMIT: Final = re.compile(r"(\w+)\s*(?:=|<=)\s*(\d+(?:\.\d+)?)\s*(ms|s)")


@dataclass(frozen=True, slots=True)
class Objective:
    """``metric`` ≤ ``limit`` seconds."""

    metric: str
    limit: float

    def __str__(self) -> str:
        return f"{self.metric} <= {self.limit * 1000:g} ms"

    def met_by(self, request: Measurement) -> bool:
        """A TPOT that does not exist (of one token) is kept; the TTFT of an empty response is its end."""
        if self.metric == "ttft":
            return (request.e2e if request.ttft is None else request.ttft) <= self.limit
        if self.metric == "tpot":
            return request.tpot is None or request.tpot <= self.limit
        return request.e2e <= self.limit


def parse_objective(text: str) -> Objective:
    """``ttft=200ms``, ``e2e=2.5s``. Raises ``ValueError``."""
    match = _LIMIT.fullmatch(text.strip().lower())
    if match is None or match[1] not in METRICS:
        raise ValueError(f"{text!r} is no objective; write {', '.join(METRICS)} = a time, like ttft=200ms or e2e=2.5s")
    return Objective(match[1], float(match[2]) / (1000 if match[3] == "ms" else 1))


def well_served(request: Measurement, objectives: Iterable[Objective]) -> bool:
    """Whether it succeeded and kept all objectives."""
    return request.failure is None and all(objective.met_by(request) for objective in objectives)
