"""The canary of a service, as it stands in ``status.canary``: all that is remembered of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from blade_operator.model.objects import Object

Phase = Literal["Waiting", "Shadowing", "Running", "Promoting", "Aborted", "Withdrawn"]
ABORTED: Final = "RolloutAborted"
"""Type and reason of the condition; its message has the numbers."""


@dataclass(frozen=True, slots=True)
class Canary:
    """A new revision beside the stable one, which it is to replace."""

    revision: str
    stable: str
    phase: Phase = "Waiting"
    """``Waiting`` for engines of the next step, ``Shadowing`` while it gets copies of requests only, ``Running`` at a
    step, ``Promoting`` after the last one, ``Aborted`` until the spec changes, ``Withdrawn``: the spec went back to the
    stable one, and its engines leave."""
    weight: int = 0
    """Its share of the requests in percent."""
    since: str = ""
    """When it got that share."""
    reason: str = ""
    """Why it was aborted."""
    note: str = ""
    """What there is to say of it now; not remembered."""

    @property
    def on_trial(self) -> bool:
        """Whether it may still become either."""
        return self.phase in ("Waiting", "Shadowing", "Running")

    @property
    def serving(self) -> str:
        """The revision that is to have all engines in the end, as far as is known."""
        return self.revision if self.phase == "Promoting" else self.stable

    def as_status(self) -> dict[str, Any]:
        """``status.canary``. The reason is in the condition."""
        found: dict[str, Any] = {"revision": self.revision, "stable": self.stable, "phase": self.phase}
        if self.weight:
            found["weight"] = self.weight
        if self.since:
            found["since"] = self.since
        return found


def read_canary(service: Object) -> Canary | None:
    """The canary in the status of ``service``; None without one that can be read: users can edit a status, too."""
    status = service.get("status") or {}
    found = status.get("canary")
    if not isinstance(found, dict):
        return None
    revision, stable, phase = (found.get(name) for name in ("revision", "stable", "phase"))
    weight = found.get("weight", 0)
    if not (isinstance(revision, str) and isinstance(stable, str) and revision and stable and revision != stable):
        return None
    if phase not in get_args(Phase) or not isinstance(weight, int) or not 0 <= weight <= 100:
        return None
    reason = next((each.get("message", "") for each in status.get("conditions") or () if each["type"] == ABORTED), "")
    return Canary(revision, stable, cast(Phase, phase), weight, str(found.get("since", "")), str(reason))
