"""The fields of ``LLMService.spec.rollout``: how engines of one revision are replaced by those of another."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from blade_operator.spec.canary_fields import Canary
from blade_operator.spec.types import Duration, Hint, Record

CRON_PATTERN: Final = r"^[^ @]+( [^ @]+){4}$"
"""Five fields; whether they make sense, the operator says."""


Minutes = Annotated[
    str,
    StringConstraints(pattern=r"^([1-9][0-9]*h)?([1-9][0-9]*m)?$", min_length=2, max_length=8),
    Hint("a duration in whole minutes like 30m or 1h30m"),
]


class Window(Record):
    """A maintenance window."""

    cron: Annotated[
        str,
        StringConstraints(pattern=CRON_PATTERN, max_length=128),
        Hint('five fields with one space between them: minute, hour, day, month, weekday, like "0 2 * * 6"'),
    ] = Field(
        description="When it opens. Minute, hour, day, month and weekday, with one space between them, by cron(8): "
        "`0 2 * * 6` is on Saturdays at 2 o'clock."
    )
    duration: Duration = Field(description="How long it is open.")
    time_zone: Annotated[str, StringConstraints(max_length=64)] = Field(
        default="UTC", description="As `Europe/Berlin`."
    )


class Rollout(Record):
    """How engines are replaced when their pod template changes (a rolling update)."""

    max_surge: int = Field(
        default=1,
        ge=0,
        le=1000,
        description="Engines beyond `replicas` during a change. `0` where there is no room for another "
        "(then `maxUnavailable` must be at least 1).",
    )
    max_unavailable: int = Field(default=0, ge=0, le=1000, description="Engines that may be missing during a change.")
    paused: bool = Field(
        default=False,
        description="No engine is replaced. What has begun ends; engines are scaled, and those that die are made anew, "
        "as they were.",
    )
    window: Window | None = Field(
        default=None,
        description="When replacing engines may begin. At any time when unset. What has begun ends; first engines, "
        "scaling and rollbacks do not wait.",
    )
    progress_deadline: Minutes = Field(
        default="30m",
        description="Longest time without progress. That is: another engine is ready, or more of the "
        "model has arrived. The time does not count while earlier engines drain, nor while the change waits.",
    )
    rollback: Literal["Automatic", "Off"] = Field(
        default="Automatic",
        description="What then follows. `Automatic`: the last revision that was ready runs again, until the "
        "spec or `serving.bladellm.io/restarted-at` changes; the spec stays as it is. `Off`: a condition alone.",
    )
    canary: Canary | None = Field(default=None, description="How a new revision proves itself.")
    drain_timeout: Duration = Field(
        default="10m", description="How long an engine that leaves may finish its requests."
    )
    revision_history_limit: int = Field(
        default=5, ge=0, le=100, description="Earlier revisions kept. Going back reuses the very same pods."
    )
