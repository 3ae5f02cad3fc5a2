"""A grammar whose request may have only some tokens, or has bad words."""

from __future__ import annotations

import numpy as np

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.sampling.restrictions import allowed_mask, forbidden_tokens
from blade_llm.scheduling.grammar import Grammar


def restricted(grammar: Grammar, sampling: SamplingParams, stop_ids: frozenset[int], vocab_size: int) -> Grammar:
    """``grammar`` without the tokens that ``sampling`` forbids; as it is where that forbids none.

    ``stop_ids``: tokens that end the output.
    """
    bad_words = sampling.bad_words_token_ids
    if sampling.allowed_token_ids is None and not bad_words:
        return grammar
    allowed = allowed_mask(sampling.allowed_token_ids, forbidden_tokens(bad_words), vocab_size)
    ends = allowed_mask(tuple(stop_ids), (), vocab_size)
    return RestrictedGrammar(grammar, allowed, ends, forces=not any(len(sequence) > 1 for sequence in bad_words))


class RestrictedGrammar:
    """Implements :class:`~blade_llm.scheduling.grammar.Grammar`.

    An output that is complete, but may not have the token that would end it, ends where no other token is left.

    Args:
        allowed: the tokens that the request may have, as bits of a mask.
        ends: the tokens that end the output.
        forces: False: no tokens are forced, as together they may be a bad word.
    """

    __slots__ = ("_allowed", "_at_end", "_ends", "_forces", "_grammar")

    def __init__(
        self, grammar: Grammar, allowed: np.ndarray, ends: np.ndarray, *, forces: bool, at_end: bool = False
    ) -> None:
        self._grammar = grammar
        self._allowed = allowed
        self._ends = ends
        self._forces = forces
        self._at_end = at_end

    @property
    def finished(self) -> bool:
        return self._at_end or self._grammar.finished

    def accept(self, token_ids: list[int]) -> None:
        self._grammar.accept(token_ids)
        self._at_end = False

    def forced(self) -> list[int]:
        if not self._forces:
            return []
        forced = self._grammar.forced()
        allowed = self._allowed
        end = next((i for i, token in enumerate(forced) if not allowed[token // 32] >> (token % 32) & 1), len(forced))
        return forced[:end]

    def fill(self, mask: np.ndarray) -> None:
        self._grammar.fill(mask)
        may_end = bool((mask & self._ends).any())
        mask &= self._allowed
        self._at_end = may_end and not mask.any()

    def copy(self) -> Grammar:
        return RestrictedGrammar(
            self._grammar.copy(), self._allowed, self._ends, forces=self._forces, at_end=self._at_end
        )
