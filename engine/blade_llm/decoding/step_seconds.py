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

    def __init__(
        self, measured: Mapping[int, float], draft: Mapping[int, float] | None = None, plain: float | None = None
    ) -> None:
        """``measured``: tokens of a step of decodes → seconds; ``draft``: decodes → seconds of one step of the draft
        model. Neither may be empty; without a model that drafts, ``draft`` is None. ``plain``: seconds of a step of one
        decode without drafts, where such steps begin before the last is delivered; None: they do not."""
        self._target = _Curve(measured)
        self._draft = None if draft is None else _Curve(draft)
        self._saved = 0.0 if plain is None else max(0.0, self._target.at(1) - plain)
        """By launching steps without drafts before the last one is delivered."""
        self._beyond: float | None = None
        self._host: float | None = None
        """Of the host between steps, before those with drafts."""
        self._plain_host = None if plain is None else 0.0
        """The same before those without."""

    @property
    def beyond(self) -> float:
        """Seconds that steps take beyond what was measured at the start."""
        return self._beyond or 0.0

    @property
    def _drafting(self) -> float:
        """Seconds of the host for drafts alone."""
        if self._host is None or self._plain_host is None:
            return 0.0
        return max(0.0, self._host - self._plain_host)

    def target(self, decodes: int, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """Seconds of steps with drafts of each of ``tokens``, for so many decodes: [len(tokens)] fp64."""
        return self._target(np.asarray(tokens)) + self.beyond + self._drafting

    def target_of(self, tokens: float) -> float:
        """Seconds of one step with drafts; ``tokens`` may be an average."""
        return self._target.at(tokens) + self.beyond + self._drafting

    def plain(self, tokens: int) -> float:
        """Seconds of a step without drafts."""
        return self._target.at(tokens) + self.beyond - self._saved

    def draft(self, decodes: int, steps: int) -> float:
        """Seconds that the draft model takes for ``steps`` tokens of each of ``decodes``."""
        return 0.0 if self._draft is None else steps * self._draft.at(decodes)

    def observe(self, tokens: int, decodes: int, draft_steps: int, seconds: float, host: float = 0.0) -> None:
        """A step without prefill took ``seconds``, and began ``host`` after the last one was delivered."""
        known = self._target.at(tokens) + self.draft(decodes, draft_steps)
        beyond = max(0.0, seconds - known)
        if self._beyond is None:
            self._beyond = beyond
        else:  # an outlier counts as no more than a doubling of the step
            self._beyond += _SMOOTHING * (min(beyond, 2.0 * self._beyond + known) - self._beyond)
        host = min(host, known)
        if tokens > decodes:
            self._host = _smoothed(self._host, host)
        else:
            self._plain_host = _smoothed(self._plain_host, host)


def _smoothed(before: float | None, value: float) -> float:
    return value if before is None else before + _SMOOTHING * (value - before)


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
