"""The fields of ``LLMService.spec.rollout``: how engines of one revision are replaced by those of another."""

from __future__ import annotations

from pydantic import Field

from blade_operator.spec.types import Duration, Record


class Rollout(Record):
    """How engines are replaced when their pod template changes (a rolling update)."""

    max_surge: int = Field(
        default=1,
        ge=0,
        le=1000,
        description="Engines that may run beyond `replicas` during a change. `0` where there is no room for another "
        "(then `maxUnavailable` must be at least 1).",
    )
    max_unavailable: int = Field(
        default=0, ge=0, le=1000, description="Engines that may be missing from `replicas` during a change."
    )
    drain_timeout: Duration = Field(
        default="10m", description="How long an engine that leaves may finish its requests before it is stopped."
    )
    revision_history_limit: int = Field(
        default=5, ge=0, le=100, description="Earlier revisions kept, so that going back reuses the very same pods."
    )
