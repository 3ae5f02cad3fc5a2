"""Guesses of what comes next, as a tree: n-grams that begin alike share their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from blade_llm.decoding.lookahead.pool import NgramPool


class GuessTree:
    """Grows from the last known token, within a number of tokens.

    Attributes:
        tokens: of each guess.
        parents: the guess that each goes on from; -1: the last known token.
    """

    __slots__ = ("_children", "_most", "parents", "tokens")

    def __init__(self, most: int) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._most = most
        self._children: dict[tuple[int, int], int] = {}

    def add(self, parent: int, tokens: Sequence[int]) -> int | None:
        """Let ``tokens`` follow ``parent``; the guess of the last one, or None where there is no room for it."""
        for token in tokens:
            child = self._children.get((parent, token))
            if child is None:
                if len(self.tokens) >= self._most:
                    return None
                child = self._children[parent, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(parent)
            parent = child
        return parent


def guess_tree(pool: NgramPool, last: int, most: int, *, one_chain: bool = False) -> GuessTree:
    """What the pool knows to follow ``last``, in at most ``most`` tokens.

    First the latest n-gram, and what followed its end last, twice as long as an n-gram: guesses that come first need
    not be moved when they are accepted. Then the other n-grams, and what followed theirs. ``one_chain``: the first
    alone.
    """
    tree, depth = GuessTree(most), 2 * pool.size
    _follow(tree, pool, -1, last, depth)
    if one_chain:
        return tree
    ends = [(tree.add(-1, gram), gram[-1]) for gram in pool.after(last)]
    for end, token in ends:
        if end is not None:
            _follow(tree, pool, end, token, depth - pool.size + 1)
    return tree


def _follow(tree: GuessTree, pool: NgramPool, parent: int, token: int, depth: int) -> None:
    """Let the latest n-grams follow one another, up to ``depth`` tokens."""
    while depth > 0:
        gram = pool.latest_after(token)
        if gram is None:
            return
        end = tree.add(parent, gram[:depth])
        if end is None:
            return
        depth -= len(gram)
        parent, token = end, gram[-1]
