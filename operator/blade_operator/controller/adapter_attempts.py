"""Back-off for adapters that engines are asked to load again and again, and why they refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from blade_operator import backoff
from blade_operator.model.plan import LoadAdapter

At = tuple[str, str]
"""Names of a pod and an adapter."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    action: LoadAdapter
    refusal: str
    repeats: int
    retry_at: float


class AdapterAttempts:
    """The latest request to load each adapter on each engine of one service."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest: dict[At, _Attempt] = {}

    @property
    def refused(self) -> Mapping[At, str]:
        """Why engines refused the latest requests, those that they accepted apart."""
        return {at: attempt.refusal for at, attempt in self._latest.items() if attempt.refusal}

    def backs_off(self, action: LoadAdapter) -> bool:
        """Whether this very request was made too short a time ago: reading it may take a hub or a disk each time."""
        attempt = self._latest.get((action.pod, action.name))
        return attempt is not None and attempt.action == action and self._clock() < attempt.retry_at

    def record(self, action: LoadAdapter, refusal: str) -> None:
        """Record that the request was just made, and refused for that reason; empty: it was accepted."""
        at = (action.pod, action.name)
        before = self._latest.get(at)
        repeats = before.repeats + 1 if before is not None and before.action == action else 0
        self._latest[at] = _Attempt(action, refusal, repeats, self._clock() + backoff.delay(repeats))

    def retain(self, pending: Iterable[At]) -> None:
        """Drop the attempts for all but ``pending``: the other adapters are loaded, or wanted no more."""
        names = frozenset(pending)
        self._latest = {at: attempt for at, attempt in self._latest.items() if at in names}
