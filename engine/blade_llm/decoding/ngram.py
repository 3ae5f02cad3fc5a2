"""Prompt lookup: draft tokens are what followed the last place where the text went on as it does now.

Saxena, "Prompt lookup decoding" (2023), with a suffix automaton instead of a search for n-grams of fixed lengths, as
in Hu et al., "SAM decoding" (arXiv 2411.10666): the longest match is found in constant time a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from blade_llm.decoding.suffix_automaton import SuffixAutomaton

GENERATION: Final = 2048
"""Tokens of one automaton. Two are kept, so a slot's index has the last 2048 to 4096 tokens of its text, in at most
about 2 MiB."""


class Match(NamedTuple):
    """The text ends as it did before."""

    length: int
    """Tokens that are equal; at least 1."""
    following: list[int]
    """The tokens that came next then."""


class NgramIndex:
    """The text of one request, and where what it ends with occurred before. Memory is bounded by :data:`GENERATION`."""

    __slots__ = ("_current", "_generation", "_previous", "_since", "indexed")

    def __init__(self, generation: int = GENERATION) -> None:
        self._generation = generation
        self._current = SuffixAutomaton()
        self._previous: SuffixAutomaton | None = None
        self._since = 0
        """Tokens that followed the previous automaton's text."""
        self.indexed = 0
        """Tokens of the text that were added."""

    def extend(self, tokens: Sequence[int], most: int) -> int:
        """Add at most ``most`` of the text's tokens that are not in it yet; returns how many. ``tokens``: the whole
        text."""
        end = min(len(tokens), self.indexed + most)
        if end - self.indexed > 2 * self._generation:
            self.indexed = end - 2 * self._generation  # what would be forgotten again
        start = self.indexed
        for index in range(start, end):
            if len(self._current) >= self._generation:
                self._previous, self._current = self._current, SuffixAutomaton()
                # What repeats across its beginning is found, too.
                for token in tokens[max(0, index - self._generation // 8) : index]:
                    self._current.append(token)
            self._current.append(tokens[index])
        self.indexed = end
        return end - start

    def match(self, tokens: Sequence[int], least: int, count: int) -> Match | None:
        """The longest match of at least ``least`` tokens, with up to ``count`` tokens that followed; None: there is
        none, or the index lags behind ``tokens``."""
        if self.indexed < len(tokens):
            return None
        current = self._current
        if current.match_length >= least:
            return Match(current.match_length, _following(current.tokens, current.match_end, count))
        if self._previous is not None:
            return _search(self._previous, tokens, least, count)
        return None


def _following(text: Sequence[int], end: int, count: int) -> list[int]:
    """``count`` tokens from ``end`` on. Where the text ends before, it is taken to go on in the same period."""
    following = list(text[end : end + count])
    period = len(text) - end
    while len(following) < count:
        following.append(following[len(following) - period])
    return following


def _search(automaton: SuffixAutomaton, tokens: Sequence[int], least: int, count: int) -> Match | None:
    """Where the end of ``tokens`` occurs in the text of an automaton that no longer grows."""
    found = automaton.find(tokens[-_LONGEST:])
    if found is None or found[0] < least:
        return None
    length, end = found
    following = automaton.tokens[end : end + count]
    return Match(length, following) if following else None


_LONGEST: Final = 16
"""Tokens that are searched for at most in what is older than the present automaton."""
