"""Back-off for single objects that are written again and again: refused, or altered by the cluster on every write.

A service with such an object may be reconciled every few seconds, because of its pods or its requests. The object is
retried later each time: the outcome would be the same until a quota, a policy or a permission changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from blade_operator import backoff
from blade_operator.model.objects import Object, Ref
from blade_operator.model.plan import Prune

Write = Object | Prune
"""What is attempted: an object to apply, or what to remove from one."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    what: Write
    refusal: str
    """Empty when the object was accepted."""
    repeats: int
    retry_at: float


class Attempts:
    """The latest attempts to write the objects of one service."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest: dict[Ref, _Attempt] = {}

    @property
    def refused(self) -> Mapping[Ref, str]:
        """Each object that was refused at its latest attempt, with the reason."""
        return {ref: attempt.refusal for ref, attempt in self._latest.items() if attempt.refusal}

    @property
    def retry_after(self) -> float | None:
        """Seconds until the first of the objects may be written again; None when no attempt is kept."""
        first = min((attempt.retry_at for attempt in self._latest.values()), default=None)
        return None if first is None else max(0.0, first - self._clock())

    def backs_off(self, what: Write) -> bool:
        """Whether this very write was attempted too short a time ago."""
        attempt = self._latest.get(_ref(what))
        return attempt is not None and attempt.what == what and self._clock() < attempt.retry_at

    def record(self, what: Write, refusal: str = "") -> None:
        """Record that ``what`` has just been written, or refused for the reason ``refusal``."""
        before = self._latest.get(_ref(what))
        repeats = before.repeats + 1 if before is not None and before.what == what else 0
        self._latest[_ref(what)] = _Attempt(what, refusal, repeats, self._clock() + backoff.delay(repeats))

    def retain(self, pending: Iterable[Write]) -> None:
        """Drop the attempts for all but ``pending``: the others were written as desired, or are desired no more."""
        refs = {*map(_ref, pending)}
        self._latest = {ref: attempt for ref, attempt in self._latest.items() if ref in refs}


def _ref(what: Write) -> Ref:
    return what.ref if isinstance(what, Prune) else Ref.of(what)
