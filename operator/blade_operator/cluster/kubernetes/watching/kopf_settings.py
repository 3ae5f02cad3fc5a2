"""How kopf is configured: pages, time-outs and label selectors, and nothing that it could write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kopf

from blade_operator.cluster.kubernetes.api import READ_TIMEOUT
from blade_operator.cluster.kubernetes.kinds import Kind

CHUNK = 100
"""Objects per page of a list: the memory it takes at a time."""
IDLE_WORKER = 0.05
"""Seconds that kopf keeps a task for an object without events."""
WATCH_SECONDS = 60
"""Seconds the server keeps one watch open: shorter than kopf's time-out without an event, since of a kind that never
changes there are no bookmarks either."""
WATCH_AT_MOST_EVERY = 1.0
"""Seconds between two watches of one scope: a server that ends every watch at once is not flooded."""
BACKOFFS = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds between the attempts of one request; a refusal that outlasts them ends the run."""


def configure(settings: kopf.OperatorSettings, kinds: Sequence[Kind], backoffs: Sequence[float]) -> None:
    """Set everything that kopf reads, when it starts."""
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.process.ultimate_exiting_timeout = None  # it would kill the process after a run that failed
    settings.networking.request_timeout = READ_TIMEOUT
    settings.networking.error_backoffs = tuple(backoffs)
    settings.queueing.idle_timeout = IDLE_WORKER
    settings.watching.chunk_size = CHUNK
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.reconnect_backoff = WATCH_AT_MOST_EVERY
    for kind in kinds:
        if kind.selector:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = kind.selector
    settings.persistence.finalizer = "serving.bladellm.io/none"  # kopf takes off the one it believes to be its own
    settings.persistence.diffbase_storage = _NoDiffBase()
    settings.persistence.progress_storage = _NoProgress()


class NoMemo:
    """kopf copies the memo for each object: this one costs nothing."""

    def __copy__(self) -> NoMemo:
        return self


class _NoDiffBase(kopf.DiffBaseStorage):
    """Nothing is remembered of an object, and nothing copied to compare it."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


class _NoProgress(kopf.ProgressStorage):
    """No handler has any progress."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence
