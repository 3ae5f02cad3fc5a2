"""The grammar of one output, matched by llguidance: the scheduler's ``Grammar``."""

from __future__ import annotations

import time
from typing import Final

import llguidance
import numpy as np

from blade_llm.sampling.guided import limits
from blade_llm.sampling.guided.errors import GrammarSpecError, as_grammar_spec_error, readable

_LEXER_FULL: Final = "too many states"
"""Part of llguidance's message. States are counted over all copies and never given back."""


class MatcherGrammar:
    """Wraps a matcher that belongs to this output alone. Copies share what the lexer has learnt, and its end.

    Args:
        eos_token_ids: those of the vocabulary.
        faults: what went wrong with the lexer, of all copies.
    """

    __slots__ = ("_eos_token_ids", "_faults", "_matcher", "_seconds_left")

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        eos_token_ids: frozenset[int],
        seconds_left: float = limits.OUTPUT_SECONDS,
        faults: list[str] | None = None,
    ) -> None:
        self._matcher = matcher
        self._faults: list[str] = [] if faults is None else faults
        self._eos_token_ids = eos_token_ids
        self._seconds_left = seconds_left

    @property
    def finished(self) -> bool:
        """Whether the output is complete and cannot go on."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def exhausted(self) -> bool:
        """Whether the lexer is full or broken: this and every copy, whatever its state, cannot go on."""
        return bool(self._faults)

    @property
    def complete(self) -> bool:
        """Whether the output may end here, though perhaps it can go on."""
        return self._matcher.is_accepting()

    def accept(self, token_ids: list[int]) -> None:
        """Advance by tokens of the output. Raises :class:`GrammarSpecError` for tokens that were not allowed, or when a
        limit is hit."""
        if self.finished and self._eos_token_ids.issuperset(token_ids):
            return  # the mask of a finished output still has them
        started = time.thread_time()
        try:
            taken = self._matcher.consume_tokens(token_ids)
        except BaseException as error:
            raise self._broken(error) from None
        if not taken:
            raise self._error("the answer left its structure")
        self._spend(time.thread_time() - started - len(token_ids) * limits.TOKEN_SECONDS)

    def forced(self) -> list[int]:
        """Tokens that must come next. Does not change the state. Raises :class:`GrammarSpecError` as :meth:`fill`."""
        started = time.thread_time()
        try:
            found = self._matcher.compute_ff_tokens()
        except BaseException as error:
            raise self._broken(error) from None
        self._spend(time.thread_time() - started)
        return found

    def fill(self, mask: np.ndarray) -> None:
        """Write the allowed tokens into ``mask``, [words] int32, contiguous.

        Raises :class:`GrammarSpecError` when a limit is hit; the output cannot go on.
        """
        started = time.thread_time()
        try:
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        except BaseException as error:
            raise self._broken(error) from None
        if self._matcher.is_error():
            raise self._error("the structure cannot be followed any further")
        self._spend(time.thread_time() - started)

    def copy(self) -> MatcherGrammar:
        """An independent one in the same state. Raises :class:`GrammarSpecError` when the grammar is broken."""
        try:
            matcher = self._matcher.deep_copy()
        except BaseException as error:
            raise self._broken(error) from None
        return MatcherGrammar(matcher, self._eos_token_ids, self._seconds_left, self._faults)

    def _spend(self, seconds: float) -> None:
        """Charge CPU time to the output: others of the batch wait meanwhile, so one that costs too much of it ends."""
        self._seconds_left -= seconds
        if self._seconds_left < 0:
            raise GrammarSpecError(
                f"following the structure takes longer than the limit of {limits.TOKEN_SECONDS * 1000:g} ms a token; "
                f"{limits.STEP_LIMIT_ADVICE}"
            )

    def _error(self, what: str) -> GrammarSpecError:
        found = self._matcher.get_error()
        if _LEXER_FULL in found:
            self._faults.append(_LEXER_FULL)
        return GrammarSpecError(f"{what}: {readable(found)}")

    def _broken(self, error: BaseException) -> GrammarSpecError:
        """A failed assertion of llguidance, which may have happened in the middle of changing what copies share."""
        found = as_grammar_spec_error(error)
        self._faults.append(str(found))
        return found
