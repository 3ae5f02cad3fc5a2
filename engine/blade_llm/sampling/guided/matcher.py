"""One answer followed by llguidance: what the scheduler knows as a ``Grammar``."""

from __future__ import annotations

import time

import llguidance
import numpy as np

from blade_llm.sampling.guided import limits
from blade_llm.sampling.guided.errors import StructureError, readable


class MatcherGrammar:
    """Wraps a matcher that belongs to this answer alone. Copies share what the lexer has learnt.

    Args:
        eos_token_ids: those of the vocabulary.
    """

    __slots__ = ("_eos_token_ids", "_matcher", "_seconds_left")

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        eos_token_ids: frozenset[int],
        seconds_left: float = limits.ANSWER_SECONDS,
    ) -> None:
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._seconds_left = seconds_left

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
        if self.finished and self._eos_token_ids.issuperset(token_ids):
            return  # the mask of a finished answer still has them
        started = time.thread_time()
        if not self._matcher.consume_tokens(token_ids):
            raise self._error("the answer left its structure")
        self._spend(time.thread_time() - started - len(token_ids) * limits.TOKEN_SECONDS)

    def forced(self) -> list[int]:
        """Tokens that must come next. Does not change the state."""
        started = time.thread_time()
        found = self._matcher.compute_ff_tokens()
        self._spend(time.thread_time() - started)
        return found

    def fill(self, mask: np.ndarray) -> None:
        """Write the allowed tokens into ``mask``, [words] int32, contiguous.

        Raises :class:`StructureError` when a limit is hit; the answer cannot go on.
        """
        started = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            raise self._error("the structure cannot be followed any further")
        self._spend(time.thread_time() - started)

    def copy(self) -> MatcherGrammar:
        """An independent one in the same state."""
        return MatcherGrammar(self._matcher.deep_copy(), self._eos_token_ids, self._seconds_left)

    def _spend(self, seconds: float) -> None:
        """Others of the batch wait meanwhile: an answer that costs too much of their time ends."""
        self._seconds_left -= seconds
        if self._seconds_left < 0:
            raise StructureError(
                f"following the structure takes longer than the limit of {limits.TOKEN_SECONDS * 1000:g} ms a token; "
                f"{limits.STEP_LIMIT_ADVICE}"
            )

    def _error(self, what: str) -> StructureError:
        return StructureError(f"{what}: {readable(self._matcher.get_error())}")
