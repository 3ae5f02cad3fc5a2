"""The encoder's budget: how much of its work a step may carry while others wait for their next token.

As with prefill (:mod:`blade_llm.scheduling.budget.prefill`) a step with decodes should take less than twice as long as
without, what work costs is measured, and steps without it make good what the least piece takes beyond the room there
is. A step carries a piece of the encoder's work or of prefill, never of both, so that each is measured alone.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Final

LEAST_PER_TOKEN: Final = 8
"""Row-layers of the least piece for each token of the least prefill chunk: a token goes through all layers of the text
model, a row-layer through one of the tower's."""
_FIRST: Final = 4
"""The first pieces are so many times the least one."""
_GROWTH: Final = 2.0
"""A piece has at most so many times the row-layers of the one before: what small ones cost says little of large ones,
and images differ."""
_LATEST: Final = 5
"""Pieces whose median cost counts. On a shared CPU some steps wait for other programs: charged to a small piece, such a
wait would make all work look dear, and the pieces after it as small as can be."""
_MOST_PAUSES: Final = 8.0
"""Steps without the encoder after one with it, at most."""


class EncoderBudget:
    """Estimates from measured steps.

    Args:
        least: row-layers of a piece, whatever they cost, so that encoding never stops.
        stretch: how many times longer than without a step with decodes may get.
        most_seconds: of a piece without decodes, about: who comes meanwhile waits for it.
        probe_every: after so many steps with decodes one goes without a piece, to measure decodes alone.
    """

    def __init__(
        self, *, least: int = 64, stretch: float = 1.5, most_seconds: float = 0.2, probe_every: int = 32
    ) -> None:
        self.seconds_per_row_layer: float | None = None
        """None before the first measurement."""
        self._costs = deque[float](maxlen=_LATEST)
        self._least = least
        self._stretch = stretch
        self._most_seconds = most_seconds
        self._probe_every = probe_every
        self._mixed_steps = probe_every  # the first mixed step is preceded by a probe
        self._pauses = 0.0
        self._largest = float(_FIRST * least)

    def allowance(self, num_decodes: int, decode_seconds: float | None) -> int:
        """Row-layers that the next step may carry beside ``num_decodes`` decodes; 0: it should go without.

        ``decode_seconds``: of a step of decodes alone; None: not measured yet.
        """
        if num_decodes == 0:
            return self._within(self._most_seconds)
        if self._pauses >= 1.0 or self._mixed_steps >= self._probe_every:
            self._pauses = max(0.0, self._pauses - 1.0)
            self._mixed_steps = 0
            return 0
        self._mixed_steps += 1
        if decode_seconds is None:
            return self._least
        return self._within(min(self._most_seconds, (self._stretch - 1.0) * decode_seconds))

    def batch(self) -> int:
        """Row-layers of images that are encoded together: those of the longest piece."""
        return self._within(self._most_seconds)

    def observe(self, num_decodes: int, row_layers: int, seconds: float, decode_seconds: float | None) -> None:
        """A step with so many decodes and row-layers took ``seconds``."""
        room = 0.0
        if num_decodes:
            if decode_seconds is None:
                return
            room = (self._stretch - 1.0) * decode_seconds
            seconds = max(0.0, seconds - decode_seconds)
        self._costs.append(seconds / row_layers)
        cost = self.seconds_per_row_layer = statistics.median_high(self._costs)
        # Neither an outlier nor the small end of an image undoes at once what larger pieces have shown.
        self._largest = max(_GROWTH * row_layers, 0.9 * self._largest)
        expected = cost * row_layers
        if num_decodes and room and expected > room:
            self._pauses = min(self._pauses + expected / room - 1.0, _MOST_PAUSES)

    def _within(self, seconds: float) -> int:
        most = self._largest
        if self.seconds_per_row_layer:
            most = min(most, seconds / self.seconds_per_row_layer)
        return max(self._least, int(most))
