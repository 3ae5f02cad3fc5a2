"""Grammars that follow what a draft model samples."""

from __future__ import annotations

import numpy as np
from engine_support.fake_grammar import EOS, FakeGrammar, allowed_tokens

from blade_llm.engine.guided_drafts import GuidedDrafts
from blade_llm.sampling.masks import TokenMasks, mask_words

VOCABULARY = 70
ANY: set[int] = set()


def allowed(masks: TokenMasks | None, count: int) -> list[set[int]]:
    """Of each slot; :data:`ANY` where nothing is masked."""
    found = [ANY] * count
    for index, words in zip(masks.indices, masks.words, strict=True) if masks is not None else ():
        found[index] = allowed_tokens(words)
    return found


def test_each_draft_token_is_one_that_the_grammar_allows_after_those_before() -> None:
    grammars = {7: FakeGrammar([[3, 4], [5], [6]]), 9: FakeGrammar([[60, 69], [1]])}
    masks = GuidedDrafts(grammars, mask_words(VOCABULARY))
    assert allowed(masks.first([9, 8, 7]), 3) == [{60, 69}, ANY, {3, 4}]
    assert allowed(masks.after([69, 33, 4], 3), 3) == [{1}, ANY, {5}]
    assert allowed(masks.after([1, 33, 5], 3), 3) == [ANY, ANY, {6}], "the first has ended"
    assert [grammar.allowed() for grammar in grammars.values()] == [{3, 4}, {60, 69}], "the requests' own stay"


def test_slots_that_have_enough_drop_out() -> None:
    masks = GuidedDrafts({1: FakeGrammar([[3], [4], [5]]), 2: FakeGrammar([[6], [7]])}, mask_words(VOCABULARY))
    masks.first([1, 2])
    assert allowed(masks.after([3], 1), 1) == [{4}]
    assert masks.after([], 0) is None


def test_a_grammar_that_breaks_masks_nothing_more() -> None:
    """Verifying says what is wrong."""

    class Unfillable(FakeGrammar):
        def copy(self) -> Unfillable:
            return self

        def fill(self, mask: np.ndarray) -> None:
            raise ValueError("too many states")

    class Uncopied(FakeGrammar):
        def copy(self) -> FakeGrammar:
            raise ValueError("too many states")

    grammars = {1: Unfillable([[3]]), 2: Uncopied([[3]]), 3: FakeGrammar([[4], [EOS]])}
    masks = GuidedDrafts(grammars, mask_words(VOCABULARY))
    assert allowed(masks.first([1, 2, 3]), 3) == [ANY, ANY, {4}]
    assert masks.after([3, 3, 33], 3) is None, "33 is not allowed"
