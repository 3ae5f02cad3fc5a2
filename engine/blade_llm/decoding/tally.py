"""What was drafted and accepted since the start, and whether proposals pause."""

from __future__ import annotations

from typing import Final

from blade_protocol.state import SpeculationCounts

_MOST_PAUSE: Final = 64
"""Steps without a proposal, at most, where proposals were not worth it."""
_PATIENCE: Final = 16
"""Steps in a row without a draft after which proposals pause."""


class Tally:
    """Counts drafts and acceptance, for the engine's state."""

    def __init__(self, most: int) -> None:
        """``most``: draft tokens that can be accepted in a row."""
        self.failed = False
        """The draft model computed NaN."""
        self._drafts = self._draft_tokens = 0
        self._accepted = [0] * most
        """How often the first, second, ... draft token was accepted."""

    @property
    def counts(self) -> SpeculationCounts:
        """What was drafted and accepted since the start."""
        return SpeculationCounts(
            failed=self.failed,
            drafts=self._drafts,
            draft_tokens=self._draft_tokens,
            accepted_tokens=sum(self._accepted),
            accepted_per_position=tuple(self._accepted),
        )

    def observe(self, drafted: int, accepted: int) -> None:
        """Of so many draft tokens of a decode ``accepted`` in a row were accepted."""
        self._drafts += 1
        self._draft_tokens += drafted
        for position in range(accepted):
            self._accepted[position] += 1


class Pause:
    """Proposals that are not worth it cost the host time, and a GPU its overlap: they pause longer and longer."""

    def __init__(self) -> None:
        self._without = 0
        """Steps in a row that got no draft."""
        self._left = 0
        """Steps until the next proposal."""

    def over(self) -> bool:
        """Whether this step may have a proposal. Called once for each step."""
        if self._left:
            self._left -= 1
            return False
        return True

    def proposed(self, drafted: bool) -> None:
        """A step had a proposal, and any draft or none."""
        if drafted:
            self._without = 0
            return
        self._without += 1
        if self._without >= _PATIENCE:
            self._left = min(_MOST_PAUSE, self._without)
