"""The window of Jacobi iterations, against the definition in the paper."""

from __future__ import annotations

import itertools

import pytest

from blade_llm.decoding.lookahead.window import JacobiWindow


def after(history: tuple[int, ...]) -> int:
    """What a made-up model says after a text: a function of all of it."""
    return hash(history) % 97


def seen_by(parents: list[int], tokens: list[int], at: int) -> tuple[int, ...]:
    """What token ``at`` goes on from, itself included; -1: nothing of the window."""
    chain: list[int] = []
    while at >= 0:
        chain.append(tokens[at])
        at = parents[at]
    return tuple(reversed(chain))


@pytest.mark.parametrize(("width", "gram"), list(itertools.product((1, 2, 3, 7), (2, 3, 5))))
def test_columns_are_what_the_model_says_after_its_own_guesses(width: int, gram: int) -> None:
    text = [5, 6, 7, 8]
    window = JacobiWindow(width, gram, text)
    rows = [[text[(index * 31 + 7) % 4] for index in range(width)]]
    for step in range(3 * gram):
        tokens, parents, ends = window.draft_tokens(0)
        assert (len(tokens), sum(end >= 0 for end in ends)) == window.size
        assert window.full == (step >= gram - 2)
        assert all(parent < index for index, parent in enumerate(parents))
        last = 100 + step
        # The token of a column sees the first row up to there, whose first is the last known token, and its column.
        expected = []
        for column in range(width):
            history = (last, *rows[0][1 : column + 1], *(row[column] for row in rows[1:]))
            expected.append(after(history))
            assert (last, *seen_by(parents, tokens, ends[column])) == history
        columns = [
            [last if column == 0 else rows[0][column], *(row[column] for row in rows[1:])] for column in range(width)
        ]
        grams = [[first, *rest] for first, rest in window.advance(last, expected)]
        rows.append(expected)
        if len(rows) < gram:
            assert grams == []
            continue
        assert grams == [[*column, new] for column, new in zip(columns, expected, strict=True)]
        del rows[0]


def test_tokens_count_from_the_index_of_the_first() -> None:
    window = JacobiWindow(3, 3, [1, 2, 3])
    window.advance(9, [4, 5, 6])
    tokens, parents, ends = window.draft_tokens(0)
    moved, moved_parents, moved_ends = window.draft_tokens(10)
    assert moved == tokens
    assert moved_parents == [parent + 10 if parent >= 0 else -1 for parent in parents]
    assert moved_ends == [end + 10 for end in ends]
