"""The fields of ``spec.rollout.canary`` and ``status.canary``: a new revision proves itself on few requests first."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from blade_operator.spec.types import Duration, ListType, Record, Unique


class Shadow(Record):
    """Copies of requests that a new revision gets before it gets any request."""

    share: int = Field(default=10, ge=1, le=100, description="Percent.")
    min_requests: int = Field(default=100, ge=1, le=9999, description="Least compared.")


class Canary(Record):
    """A new revision gets a share of the requests, and more in steps, unless it is worse than the one before."""

    steps: Annotated[tuple[Annotated[int, Field(ge=1, le=99)], ...], ListType("set"), Unique] = Field(
        default=(5, 25, 50),
        min_length=1,
        max_length=10,
        strict=False,
        description="Its shares in percent, the smallest first.",
    )
    interval: Duration = Field(default="5m", description="Least time of a step.")
    min_requests: int = Field(default=200, ge=1, le=1000000, description="Least requests of it in a step.")
    latency_tolerance: int = Field(default=15, ge=0, le=900, description="Percent that latencies may grow.")
    answer_tolerance: int = Field(
        default=20,
        ge=0,
        le=100,
        description="Percent of responses that may differ in length or end.",
    )
    shadow: Shadow | None = Field(default=None, description="Shadow traffic.")


class CanaryStatus(Record):
    """A new revision beside the one that it is to replace."""

    revision: str = Field(description="The new one.")
    stable: str = Field(description="The other.")
    phase: str = Field(description="Waiting, Shadowing, Running, Promoting, Aborted or Withdrawn.")
    weight: int = Field(default=0, description="Its share in percent.")
    since: str = Field(default="", description="When it got it.")
