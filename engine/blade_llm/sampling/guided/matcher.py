"""One answer followed by llguidance: what the scheduler knows as a ``Grammar``."""

from __future__ import annotations

import llguidance
import numpy as np

from blade_llm.sampling.guided.errors import StructureError, readable


class MatcherGrammar:
    """Wraps a matcher that belongs to this answer alone. Copies share what the lexer has learnt."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    @property
    def finished(self) -> bool:
        """The answer is complete and cannot go on."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def complete(self) -> bool:
        """The answer may end here, though perhaps it can go on."""
        return self._matcher.is_accepting()

    def accept(self, token_ids: list[int]) -> None:
        """The answer grew. Raises :class:`StructureError` for tokens that were not allowed, or when a limit is hit."""
        if not self._matcher.consume_tokens(token_ids):
            raise self._error("the answer left its structure")

    def forced(self) -> list[int]:
        """Tokens that must come next. Does not change the state."""
        return self._matcher.compute_ff_tokens()

    def fill(self, mask: np.ndarray) -> None:
        """Write the allowed tokens into ``mask``, [words] int32, contiguous.

        Raises :class:`StructureError` when a limit is hit; the answer cannot go on.
        """
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise self._error("the structure cannot be followed any further")

    def copy(self) -> MatcherGrammar:
        """An independent one in the same state."""
        return MatcherGrammar(self._matcher.deep_copy())

    def _error(self, what: str) -> StructureError:
        return StructureError(f"{what}: {readable(self._matcher.get_error())}")
