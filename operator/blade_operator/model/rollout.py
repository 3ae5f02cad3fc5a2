"""The state of a change from one revision of the engines to another, as the status keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Held = Literal["", "Paused", "WaitingForWindow"]


@dataclass(frozen=True, slots=True)
class RolloutState:
    """Where the change to the current revision stands."""

    target: str = ""
    """The revision that engines are to have now: the current one, unless its change is held or was rolled back."""
    stable: str = ""
    """The last revision that was ready: as many of its engines as the spec wants, and none of another."""
    failed: str = ""
    """The current revision, where it was rolled back."""
    progressed_at: str = ""
    """When the current revision last made progress; empty while its deadline does not count."""
    most_ready: int = 0
    """Most engines of the current revision that were ready at once, until then."""
    exceeded: bool = False
    """The current revision has made no progress for longer than its deadline."""
    held: Held = ""
    """Why the change waits; empty when there is none, or it goes on."""
    held_message: str = ""
    invalid_window: str = ""
    """What is wrong with the maintenance window; empty when nothing is."""

    @property
    def gave_up(self) -> bool:
        """Whether the current revision was rolled back, or would have been."""
        return self.exceeded or bool(self.failed)

    def as_status(self) -> dict[str, Any]:
        """What ``status.revision`` says of it."""
        entries = {
            "stable": self.stable,
            "failed": self.failed,
            "progressedAt": self.progressed_at,
            "mostReady": self.most_ready,
        }
        return {name: value for name, value in entries.items() if value}


def last_state(revision: Mapping[str, Any]) -> RolloutState:
    """What ``revision``, the ``status.revision`` that was written last, says of the rollout."""
    return RolloutState(
        target=revision.get("current", ""),
        stable=revision.get("stable", ""),
        failed=revision.get("failed", ""),
        progressed_at=revision.get("progressedAt", ""),
        most_ready=revision.get("mostReady", 0),
    )
