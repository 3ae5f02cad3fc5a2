"""What the cluster refused, and when to try it again: later each time, unless something else is wanted by then.

A service with such an object may be looked at every few seconds, because of its pods or its requests. The object is
not sent each time: the answer would be the same until somebody changes a quota, a policy or a permission.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from blade_operator.objects import Object, Ref

PAUSE_FIRST = 0.2
PAUSE_MOST = 60.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    obj: Object
    words: str
    times: int
    again_at: float


class Refusals:
    """Those of one service."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: dict[Ref, _Refusal] = {}

    @property
    def words(self) -> Mapping[Ref, str]:
        """Each object that was refused when it was last sent, with the reason."""
        return {ref: refusal.words for ref, refusal in self._refused.items()}

    @property
    def due(self) -> float | None:
        """Seconds until the first of them may be tried again; None when nothing is refused."""
        first = min((refusal.again_at for refusal in self._refused.values()), default=None)
        return None if first is None else max(0.0, first - self._clock())

    def holds_back(self, obj: Object) -> bool:
        """Whether this very object was refused too short a time ago."""
        refusal = self._refused.get(Ref.of(obj))
        return refusal is not None and refusal.obj == obj and self._clock() < refusal.again_at

    def add(self, obj: Object, words: str) -> None:
        """``obj`` has just been refused."""
        before = self._refused.get(Ref.of(obj))
        times = before.times + 1 if before is not None and before.obj == obj else 0
        pause = min(PAUSE_MOST, PAUSE_FIRST * 2.0 ** min(times, 20)) * random.uniform(0.8, 1.2)
        self._refused[Ref.of(obj)] = _Refusal(obj, words, times, self._clock() + pause)

    def remove(self, obj: Object) -> None:
        """``obj`` was accepted."""
        self._refused.pop(Ref.of(obj), None)

    def keep_only(self, objs: Iterable[Object]) -> None:
        """Forget those that nobody wants any more."""
        wanted = {Ref.of(obj) for obj in objs}
        self._refused = {ref: refusal for ref, refusal in self._refused.items() if ref in wanted}
