"""What steps cost, estimated online from measured ones: seconds of a step of decodes, and what prefill adds to it.

The addition is affine in the prefill tokens: a fixed part (a step of decodes may replay a CUDA graph, and a mixed one
launch kernel by kernel) and a part for each token. Charging the fixed part to the tokens would make small chunks look
dear, which makes them smaller still. Both parts are a least-squares fit that forgets; where all chunks had one size,
which says nothing about the fixed part, that one stays as it was.

A step that replays a CUDA graph costs what the graph's size does, padding included.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Final

_FORGET: Final = 0.9
"""Weight of a measurement after the next one."""
_PRIOR: Final = 0.05
"""Weight of the fixed part as it was, relative to all measurements. It decides where they do not."""
_LATEST: Final = 5
"""Steps of decodes whose median counts."""
_UNIFORM: Final = 0.01
"""Below this squared coefficient of variation chunks count as of one size."""

PADDED_FOR_NOTHING: Final = 256
"""Tokens. Up to about so many a GPU computes while it reads its weights, so that padding costs next to nothing."""
FILLED: Final = 0.75
"""The part of a larger graph that a step has to fill: padding takes longer than launches where graphs are few."""


def replayed_size(sizes: Sequence[int], tokens: int) -> int | None:
    """The size of the graph that a step of ``tokens`` replays; None: it is launched. ``sizes``: ascending.

    The scheduler shapes chunks by it, and the runner follows it.
    """
    index = bisect_left(sizes, tokens)
    if index == len(sizes):
        return None
    size = sizes[index]
    return size if size <= PADDED_FOR_NOTHING or tokens >= FILLED * size else None


class StepCost:
    """Seconds of steps; all of them 0 or more.

    Attributes:
        decode: of a step of decodes only; None before the first measurement.
        fixed: what any prefill beside decodes adds.
        per_token: what each of its tokens adds; None before the first measurement.
    """

    def __init__(self) -> None:
        self.decode: float | None = None
        self._latest = deque[float](maxlen=_LATEST)
        self.fixed = 0.0
        self.per_token: float | None = None
        self._alone_seconds = self._alone_tokens = 0.0
        # Decayed sums over mixed steps: 1, tokens, tokens², added seconds, tokens times added seconds.
        self._count = self._tokens = self._squares = self._added = self._products = 0.0

    @property
    def uniform(self) -> bool:
        """Whether the last chunks were of one size, so that the fixed part cannot be separated from the tokens'."""
        if self._count < 2.5:  # three measurements
            return False
        return self._squares * self._count < (1.0 + _UNIFORM) * self._tokens**2

    @property
    def usual_decode(self) -> float | None:
        """Median seconds of the last steps of decodes only: one that waited for another program, as on a shared CPU
        some do, counts for nothing. None before the first."""
        return statistics.median_low(self._latest) if self._latest else None

    @property
    def alone(self) -> float:
        """Seconds of each token of steps without decodes, reading the weights included; 0 before the first."""
        return self._alone_seconds / self._alone_tokens if self._alone_tokens else 0.0

    @property
    def dearest(self) -> float:
        """What a token cost at most, as all that is fixed is charged to it; 0 before the first measurement."""
        return self.alone or (self._added / self._tokens if self._tokens else 0.0)

    def added(self, tokens: int) -> float:
        """Seconds that ``tokens`` of prefill add to a step of decodes."""
        return self.fixed + (self.per_token or 0.0) * tokens

    def observe_decode(self, seconds: float) -> None:
        """A step of decodes took ``seconds``."""
        self._latest.append(seconds)
        if self.decode is None:
            self.decode = seconds
        else:  # An outlier counts as no more than a doubling; a lasting change gets through in a few steps.
            self.decode += 0.25 * (min(seconds, 2.0 * self.decode) - self.decode)

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        """A step of ``tokens`` prefill tokens and no decode took ``seconds``.

        Reading the weights is in it, so it says what a token costs at most. Good for the first chunks beside decodes.
        """
        self._alone_seconds = 0.8 * self._alone_seconds + seconds
        self._alone_tokens = 0.8 * self._alone_tokens + tokens
        if not self._count:
            self.per_token = self.alone

    def observe_mixed(self, tokens: int, seconds: float) -> None:
        """A step of decodes and ``tokens`` prefill tokens took ``seconds``."""
        if self.decode is None:
            return
        added = max(seconds - self.decode, 0.0)
        if self.per_token:  # against outliers
            added = min(added, max(4.0 * self.added(tokens), self.decode))
        self._count = _FORGET * self._count + 1.0
        self._tokens = _FORGET * self._tokens + tokens
        self._squares = _FORGET * self._squares + tokens * tokens
        self._added = _FORGET * self._added + added
        self._products = _FORGET * self._products + tokens * added
        prior = _PRIOR * self._count
        determinant = (self._count + prior) * self._squares - self._tokens**2
        fixed = ((self._added + prior * self.fixed) * self._squares - self._tokens * self._products) / determinant
        # Never below 0, though a GPU computes some hundred tokens beside its weights for nothing, and then no more.
        self.fixed = min(max(fixed, 0.0), self._added / self._count)
        self.per_token = max(0.0, self._added - self.fixed * self._count) / self._tokens
