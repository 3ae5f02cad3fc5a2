"""What the operator keeps of each service that it scales, from one look at it to the next.

Most of it is in the service's status, too, which is written seldom. The rest may be lost with the process: decisions
then wait until it is known again, and nothing is scaled down meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from blade_operator.scaling.forecast import Forecast
from blade_operator.scaling.memory import Memory
from blade_operator.scaling.serialise import Saved
from blade_operator.scaling.signals import Samples

PUBLISH_SECONDS: Final = 60.0
"""Between two writes that do not change the number of engines."""
KEEP_SECONDS: Final = 600.0
"""Between two writes only of what was learnt."""
SIGNIFICANT: Final = 0.1
"""Change of a number that is worth a write."""
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The condition ``Scaling``."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The last decision."""

    engines: int
    needed: int
    reason: str
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """Of one service."""

    uid: str
    generation: int
    verdict: Verdict
    status: Mapping[str, Any]
    """``status.scaling`` as it is to be."""
    judgement: Judgement
    """The condition as it is to be."""
    saved: Saved | None = None
    """What ``state`` in ``status`` says, decoded once where another process wrote it; None: it cannot be read."""
    memory: Memory = field(default_factory=Memory)
    samples: Samples = field(default_factory=dict)
    decided_at: float = 0.0
    measured_at: float = 0.0
    """When there was a load to decide by last."""
    published_at: float = 0.0
    """When ``status`` changed last."""
    ahead: float = 0.0
    """Seconds by which writes were ahead of one a minute then."""
    unmeasured_since: float = 0.0
    """Since when there have been requests and no latencies of streams; 0: there are, or no requests."""


def without_times(memory: Memory, at: float) -> Memory:
    """What is still true after a time that nothing is known of: how fast engines are, not what was needed lately."""
    return replace(memory.without_lately(at), arrivals=Forecast(), present=Forecast())


def differs(one: str, other: str) -> bool:
    """Whether two reasons differ in more than numbers that are near each other."""
    if _NUMBER.sub("0", one) != _NUMBER.sub("0", other):
        return True
    pairs = zip(map(float, _NUMBER.findall(one)), map(float, _NUMBER.findall(other)), strict=True)
    return any(is_significant(before, now) for before, now in pairs)


def is_significant(before: float, now: float) -> bool:
    """Whether a number has changed by more than :data:`SIGNIFICANT`."""
    return abs(now - before) > SIGNIFICANT * max(abs(before), abs(now), 1e-9)
