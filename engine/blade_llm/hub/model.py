"""The model that is downloaded, and the progress of its download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a download."""

    done_bytes: int
    total_bytes: int
    file: str
    """The file that last received bytes."""
    files_done: int
    files_total: int


ProgressCallback = Callable[[Progress], None]
"""Called from download threads, one call at a time."""


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository on the hub; ``revision`` is a branch, tag or commit, ``None`` for the default branch."""

    repo_id: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repo_id + (f"@{self.revision}" if self.revision else "")
