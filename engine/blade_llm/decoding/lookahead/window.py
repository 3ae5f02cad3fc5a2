"""The window of lookahead decoding: a few Jacobi iterations at once, each a row, over the next positions, the columns.

The token of a row and column is what the model said there one iteration after the row above; it sees the first row up
to its column, and its own column below that. So a column reads as an n-gram that the model might write. The first token
of the first row is the last known one, which each step computes anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class JacobiWindow:
    """The window of one request, with W columns and, once as many steps have passed, N - 1 rows."""

    __slots__ = ("_most_rows", "_rows", "_width")

    def __init__(self, width: int, gram_size: int, text: Sequence[int]) -> None:
        """``text``: tokens to begin with, as good as any others."""
        self._width = width
        self._most_rows = gram_size - 1
        self._rows = [[text[(index * 31 + 7) % len(text)] for index in range(width)]]

    @property
    def full(self) -> bool:
        """Whether its columns are n-grams."""
        return len(self._rows) == self._most_rows

    @property
    def size(self) -> tuple[int, int]:
        """How many draft tokens it has, and after how many of them is sampled."""
        sampled = self._width - 1 if len(self._rows) == 1 else self._width
        return len(self._rows) * self._width - 1, sampled

    def draft_tokens(self, first: int) -> tuple[list[int], list[int], list[int]]:
        """Tokens of the window, which one each goes on from (-1: the last known token), and those after which is
        sampled, column by column; these indices count from ``first`` on, the index of the window's first token."""
        width = self._width
        tokens, parents = self._rows[0][1:], [-1, *range(first, first + width - 2)][: width - 1]
        above = [-1, *range(first, first + width - 1)]
        for row in self._rows[1:]:
            own = first + len(tokens)
            tokens += row
            parents += above
            above = list(range(own, own + width))
        return tokens, parents, above

    def advance(self, last: int, sampled: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Go on one iteration: what was sampled after each column becomes the last row. The n-grams that the columns
        were, each as its first token and the others; none before there are enough rows. ``last``: what was the last
        known token."""
        rows = self._rows
        rows.append(list(sampled))
        if len(rows) <= self._most_rows:
            return iter(())
        first = rows.pop(0)
        first[0] = last
        return zip(first, zip(*rows, strict=True), strict=True)
