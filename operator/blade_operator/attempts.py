"""What was sent to the cluster and is wanted all the same: refused, or altered by the cluster as soon as it comes in.

A service with such an object may be looked at every few seconds, because of its pods or its requests. The object is
sent again later each time: the answer would be the same until somebody changes a quota, a policy or a permission.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from blade_operator import backoff
from blade_operator.objects import Object, Ref


@dataclass(frozen=True, slots=True)
class _Attempt:
    obj: Object
    refusal: str
    """Empty when the object was accepted."""
    times: int
    again_at: float


class Attempts:
    """Those of one service."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._latest: dict[Ref, _Attempt] = {}

    @property
    def refused(self) -> Mapping[Ref, str]:
        """Each object that was refused when it was last sent, with the reason."""
        return {ref: attempt.refusal for ref, attempt in self._latest.items() if attempt.refusal}

    @property
    def due(self) -> float | None:
        """Seconds until the first of them may be sent again; None when there is none."""
        first = min((attempt.again_at for attempt in self._latest.values()), default=None)
        return None if first is None else max(0.0, first - self._clock())

    def holds_back(self, obj: Object) -> bool:
        """Whether this very object was sent too short a time ago."""
        attempt = self._latest.get(Ref.of(obj))
        return attempt is not None and attempt.obj == obj and self._clock() < attempt.again_at

    def add(self, obj: Object, refusal: str = "") -> None:
        """``obj`` has just been sent."""
        before = self._latest.get(Ref.of(obj))
        times = before.times + 1 if before is not None and before.obj == obj else 0
        self._latest[Ref.of(obj)] = _Attempt(obj, refusal, times, self._clock() + backoff.pause(times))

    def keep_only(self, wanted: Iterable[Object]) -> None:
        """Forget those that are not to be written any more: what was sent is there, or nobody wants it."""
        refs = {Ref.of(obj) for obj in wanted}
        self._latest = {ref: attempt for ref, attempt in self._latest.items() if ref in refs}
