"""The fields of ``spec.scaling``: who decides how many engines there are, and within which bounds."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from blade_operator.spec.types import Duration, Hint, Record

Latency = Annotated[
    str, StringConstraints(pattern=r"^[1-9][0-9]*m?s$", max_length=8), Hint("a latency like 500ms or 2s")
]
Amount = Annotated[
    str,
    StringConstraints(pattern=r"^([1-9][0-9]*(\.[0-9]+)?|0\.[0-9]*[1-9][0-9]*)$", max_length=12),
    Hint("an amount above 0 like 2.50"),
]
Cron = Annotated[str, StringConstraints(max_length=64), Hint("five fields, like 0 8 * * 1-5")]
Mode = Literal["Fixed", "Concurrency", "SLO", "External", "Advisory"]


class Target(Record):
    """What one engine is to have."""

    concurrency: int = Field(ge=1, le=65536, description="Requests.")


class Slo(Record):
    """Latencies that streams are promised."""

    ttft: Latency = Field(description="Time to the first token.")
    tpot: Latency | None = Field(default=None, description="Per token after it.")
    percentile: Literal[50, 90, 99] = Field(
        default=90, description="Which of them.", json_schema_extra={"minimum": 50, "maximum": 99}
    )


class Behavior(Record):
    """How fast the number of engines may change."""

    up_percent: int = Field(default=100, ge=0, le=1000, description="Most more in 15 s, in %; 4 engines in any case.")
    down_percent: int = Field(
        default=25, ge=0, le=100, description="Most fewer in a minute, in %; one engine in any case."
    )
    down_delay: Duration = Field(default="2m", description="How long fewer must have been enough.")


class Schedule(Record):
    """Other bounds at certain times."""

    cron: Cron = Field(description="When it begins.")
    time_zone: Annotated[str, StringConstraints(max_length=64)] = Field(default="UTC", description="Of `cron`.")
    duration: Duration = Field(description="How long it holds.")
    min: int | None = Field(default=None, ge=0, le=1000, description="In place of `min`.")
    max: int | None = Field(default=None, ge=1, le=1000, description="In place of `max`.")


class Cost(Record):
    """A budget, in any currency and for any time."""

    engine: Amount = Field(description="Of one engine.")
    max: Amount = Field(description="Most of all together.")


class Scaling(Record):
    """Who decides on the number of engines."""

    mode: Mode = Field(
        default="Fixed",
        description="`Fixed`: `replicas`. `Concurrency`: by `target`. `SLO`: by `slo`. `External`: `replicas`, which "
        "an HPA or KEDA sets. `Advisory`: by `slo`, else `target`, but it is only said in the status. The other "
        "fields are for the three that decide by load.",
    )
    min: int = Field(default=1, ge=0, le=1000, description="Fewest engines.")
    max: int | None = Field(default=None, ge=1, le=1000, description="Most engines.")
    target: Target | None = Field(default=None, description="For Concurrency.")
    slo: Slo | None = Field(default=None, description="For SLO.")
    behavior: Behavior | None = Field(default=None, description="Speeds.")
    idle_to_zero: Duration | None = Field(default=None, description="Idle time after which no engine is kept.")
    schedules: tuple[Schedule, ...] = Field(default=(), max_length=16, strict=False, description="Bounds by time.")
    max_gpus: int | None = Field(
        alias="maxGPUs",
        default=None,
        ge=1,
        le=65536,
        description="Most GPUs of all engines together.",
    )
    cost: Cost | None = Field(default=None, description="What engines may cost.")
    standby: int = Field(default=0, ge=0, le=1000, description="Engines kept warm beside them.")

    @property
    def by_load(self) -> bool:
        """Whether the operator decides by load; in mode Advisory without doing anything."""
        return self.mode not in ("Fixed", "External")

    @property
    def wakes(self) -> bool:
        """Whether the operator starts an engine when a request comes though there is none."""
        return self.by_load and self.mode != "Advisory"
