"""Seconds that a step of decodes takes, by the tokens that it computes and the draft tokens that a model makes for it.

What grows with tokens was measured at the start, with short contexts. What a step takes beyond, or less, is learned
online: apart for steps with drafts and without, as far as there were both, and with the host's time for drafts. Where
steps overlap (on a GPU), those with drafts do not, as drafts go on from the last tokens.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

_SMOOTHING: Final = 0.1
"""Weight of a new measurement."""
_SHORTEST: Final = 0.3
"""The share of a step's measured time that it takes at least."""


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
        self._overlap = plain is not None
        self._plain_error = None if plain is None else plain - self._target.at(1)
        self._drafts_error: float | None = None
        """Seconds that steps without and with drafts take beyond what was measured at the start; None: not known."""
        self._plain_host = None if plain is None else 0.0
        self._drafts_host: float | None = None
        """Of the host before steps without drafts, and before those with them."""

    @property
    def _drafting(self) -> float:
        """Seconds of the host for drafts alone."""
        if self._drafts_host is None or self._plain_host is None:
            return 0.0
        return max(0.0, self._drafts_host - self._plain_host)

    @property
    def _with_drafts(self) -> float:
        """Seconds that steps with drafts take beyond what was measured."""
        error = self._drafts_error
        if error is None:
            error = self._plain_error or 0.0
            if self._overlap:
                error = max(0.0, error)
        return error + self._drafting

    def target(self, decodes: int, tokens: Sequence[int] | np.ndarray) -> np.ndarray:
        """Seconds of steps with drafts of each of ``tokens``, for so many decodes: [len(tokens)] fp64."""
        known = self._target(np.asarray(tokens))
        return np.maximum(known + self._with_drafts, _SHORTEST * known)

    def target_of(self, tokens: float) -> float:
        """Seconds of one step with drafts; ``tokens`` may be an average."""
        return self._at_least(self._target.at(tokens), self._with_drafts)

    def plain(self, tokens: int) -> float:
        """Seconds of a step without drafts."""
        error = self._plain_error if self._plain_error is not None else self._drafts_error or 0.0
        return self._at_least(self._target.at(tokens), error)

    def draft(self, decodes: int, steps: int) -> float:
        """Seconds that the draft model takes for ``steps`` tokens of each of ``decodes``."""
        return 0.0 if self._draft is None else steps * self._draft.at(decodes)

    def observe(self, tokens: int, decodes: int, draft_steps: int, seconds: float, host: float = 0.0) -> None:
        """A step without prefill took ``seconds``, and began ``host`` after the last one was delivered."""
        known = self._target.at(tokens) + self.draft(decodes, draft_steps)
        error, host = self._at_least(known, seconds - known) - known, min(host, known)
        if tokens > decodes:
            self._drafts_error = _smoothed(self._drafts_error, error, known)
            self._drafts_host = _smoothed(self._drafts_host, host, known)
            return
        before = self._plain_error
        self._plain_error = _smoothed(before, error, known)
        self._plain_host = _smoothed(self._plain_host, host, known)
        if before is not None and self._drafts_error is not None:  # contexts grow and shrink for both
            self._drafts_error += self._plain_error - before

    @staticmethod
    def _at_least(known: float, error: float) -> float:
        """What a step takes that was measured to take ``known``, and takes ``error`` more."""
        return max(known + error, _SHORTEST * known)


def _smoothed(before: float | None, value: float, known: float) -> float:
    """The next average. An outlier counts as no more than a doubling of the step, which takes ``known``."""
    return value if before is None else before + _SMOOTHING * (min(value, 2.0 * abs(before) + known) - before)


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
