"""Grammars follow what a draft model samples, so that it drafts what the model may sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from blade_llm.sampling.masks import TokenMasks
from blade_llm.scheduling.grammar import Grammar


class GuidedDrafts:
    """The grammars of requests that draft in a step, on copies; implements
    :class:`~blade_llm.sampling.masks.DraftMasks`.

    Where a grammar ends or cannot go on, any token may be drafted: the model verifies with the grammar itself, which
    says what is wrong.
    """

    def __init__(self, grammars: Mapping[int, Grammar], words: int) -> None:
        """``grammars``: of slots, as far as all known tokens; they are not changed. ``words``: of a mask."""
        self._of_slots = grammars
        self._words = words
        self._grammars: list[Grammar | None] = []

    def first(self, slots: Sequence[int]) -> TokenMasks | None:
        """See :class:`~blade_llm.sampling.masks.DraftMasks`."""
        self._grammars = [_copied(self._of_slots.get(slot)) for slot in slots]
        return self._filled()

    def after(self, tokens: Sequence[int], count: int) -> TokenMasks | None:
        """See :class:`~blade_llm.sampling.masks.DraftMasks`."""
        pairs = zip(self._grammars[:count], tokens, strict=False)
        self._grammars = [grammar and _advanced(grammar, token) for grammar, token in pairs]
        return self._filled()

    def _filled(self) -> TokenMasks | None:
        rows: list[int] = []
        masks = np.empty((len(self._grammars), self._words), dtype=np.int32)
        for index, grammar in enumerate(self._grammars):
            if grammar is not None and _fills(grammar, masks[len(rows)]):
                rows.append(index)
        return TokenMasks(rows, masks[: len(rows)]) if rows else None


def _copied(grammar: Grammar | None) -> Grammar | None:
    try:
        return None if grammar is None else grammar.copy()
    except ValueError:
        return None


def _advanced(grammar: Grammar, token: int) -> Grammar | None:
    try:
        grammar.accept([token])
    except ValueError:
        return None
    return None if grammar.finished else grammar


def _fills(grammar: Grammar, mask: np.ndarray) -> bool:
    """Whether the grammar has tokens to allow, which are in ``mask`` then."""
    try:
        grammar.fill(mask)
    except ValueError:
        return False
    return bool(mask.any())
