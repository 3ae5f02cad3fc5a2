"""Prompt lookup: what is proposed, and that the index stays small."""

from blade_llm.decoding.ngram import NgramIndex


def index_of(tokens: list[int], **options: int) -> NgramIndex:
    index = NgramIndex(**options)
    index.extend(tokens, len(tokens))
    return index


def test_what_followed_the_longest_match_is_proposed() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 9, 2, 3, 7, 8, 1, 2, 3]
    match = index_of(tokens).match(tokens, 2, 3)
    assert match is not None
    assert (match.length, match.following) == (3, [4, 5, 6])


def test_short_matches_are_left_out() -> None:
    tokens = [1, 2, 3, 9, 4, 3]
    assert index_of(tokens).match(tokens, 2, 3) is None
    match = index_of(tokens).match(tokens, 1, 3)
    assert match is not None
    assert match.following == [9, 4, 3]


def test_a_period_goes_on() -> None:
    tokens = [7, 8, 9] * 3
    match = index_of(tokens).match(tokens, 2, 7)
    assert match is not None
    assert match.following == [7, 8, 9, 7, 8, 9, 7]


def test_an_index_that_lags_behind_proposes_nothing() -> None:
    tokens = [1, 2, 3] * 10
    index = NgramIndex()
    assert index.extend(tokens, 8) == 8
    assert index.match(tokens, 1, 4) is None
    assert index.extend(tokens, 100) == 22
    assert index.match(tokens, 1, 4) is not None


def test_old_text_is_forgotten_and_memory_bounded() -> None:
    unique = list(range(100, 1100))
    tokens = [1, 2, 3, 4, *unique]
    index = NgramIndex(generation=64)
    for end in range(1, len(tokens) + 1):
        index.extend(tokens[:end], 1)
        assert len(index._current) <= 64 + 64
    tokens += [1, 2, 3]
    index.extend(tokens, 10)
    match = index.match(tokens, 2, 2)
    assert match is None, "what is far away was forgotten"


def test_the_previous_generation_is_still_found() -> None:
    passage = list(range(50, 60))
    tokens = [*passage, *range(1000, 1060), *passage[:4]]
    index = NgramIndex(generation=64)
    for end in range(1, len(tokens) + 1):
        index.extend(tokens[:end], 1)
    match = index.match(tokens, 3, 3)
    assert match is not None
    assert match.following == passage[4:7]


def test_a_long_prompt_is_indexed_from_its_end() -> None:
    tokens = list(range(10_000))
    index = NgramIndex(generation=64)
    assert index.extend(tokens, len(tokens)) <= 2 * 64
    assert index.indexed == len(tokens)
