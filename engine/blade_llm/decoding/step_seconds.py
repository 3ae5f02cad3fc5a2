"""Seconds that a step of decodes takes, by the tokens that it computes and the draft tokens that a model makes for it.

The part that grows with tokens was measured at the start, with short contexts. What a step takes beyond (attention to
long contexts, the host) hardly depends on draft tokens, as these read the same keys and values: it is learned online
and added.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

_SMOOTHING: Final = 0.1
"""Weight of a new measurement."""


class StepSeconds:
    """The time of steps, measured and learned."""

    def __init__(self, measured: Mapping[int, float], draft: Mapping[int, float] | None = None) -> None:
        """``measured``: tokens of a step of decodes → seconds; ``draft``: decodes → seconds of one step of the draft
        model. Neither may be empty; without a model that drafts, ``draft`` is None."""
        self._target = _Curve(measured)
        self._draft = None if draft is None else _Curve(draft)
        self._beyond: float | None = None

    @property
    def beyond(self) -> float:
        """Seconds that steps take beyond what was measured at the start."""
        return self._beyond or 0.0

    def target(self, decodes: int, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """Seconds of steps of each of ``tokens``, for so many decodes: [len(tokens)] fp64."""
        return self._target(np.asarray(tokens)) + self.beyond

    def target_of(self, tokens: float) -> float:
        """Seconds of one step; ``tokens`` may be an average."""
        return self._target.at(tokens) + self.beyond

    def draft(self, decodes: int, steps: int) -> float:
        """Seconds that the draft model takes for ``steps`` tokens of each of ``decodes``."""
        return 0.0 if self._draft is None else steps * self._draft.at(decodes)

    def observe(self, tokens: int, decodes: int, draft_steps: int, seconds: float) -> None:
        """A step without prefill took ``seconds``."""
        known = self._target.at(tokens) + self.draft(decodes, draft_steps)
        beyond = max(0.0, seconds - known)
        if self._beyond is None:
            self._beyond = beyond
        else:  # an outlier counts as no more than a doubling of the step
            self._beyond += _SMOOTHING * (min(beyond, 2.0 * self._beyond + known) - self._beyond)


class _Curve:
    """A function through measured points, linear between them and never falling."""

    def __init__(self, points: Mapping[int, float]) -> None:
        self._x = sorted(map(float, points))
        self._y = list(itertools.accumulate((points[int(x)] for x in self._x), max))

    def at(self, x: float) -> float:
        """At one point; in proportion behind the last that was measured."""
        xs, ys = self._x, self._y
        above = bisect_left(xs, x)
        if above == len(xs):
            return ys[-1] / xs[-1] * x
        if not above:
            return ys[0]
        share = (x - xs[above - 1]) / (xs[above] - xs[above - 1])
        return ys[above - 1] + share * (ys[above] - ys[above - 1])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """At several points."""
        return np.where(x > self._x[-1], self._y[-1] / self._x[-1] * x, np.interp(x, self._x, self._y))
