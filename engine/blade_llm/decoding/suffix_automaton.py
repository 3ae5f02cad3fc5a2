"""A suffix automaton that grows with its text: the longest suffix of the text that occurred in it before.

Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985): a state stands for the substrings
that end at the same places. Each token is added in amortised constant time, and the longest earlier occurrence of what
the text ends with is followed on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_NONE: Final = -1


class SuffixAutomaton:
    """The substrings of a growing sequence of token ids.

    Attributes:
        tokens: the sequence.
        match_length: tokens of the longest suffix of it that occurred before, at another place; 0: none did.
        match_end: index just behind that earlier occurrence, the latest one that is known.
    """

    __slots__ = ("_edges", "_ends", "_last", "_lengths", "_links", "_matched", "match_end", "match_length", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.match_length = self.match_end = 0
        self._edges: list[dict[int, int]] = [{}]
        """State → token → state."""
        self._links = [_NONE]
        self._lengths = [0]
        """Of the longest substring of each state."""
        self._ends = [0]
        """Index just behind the latest occurrence of each state that was noted."""
        self._last = 0
        self._matched = 0
        """The state of the matched suffix."""

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Add a token, and find the longest suffix that now ends with it and occurred before."""
        self._follow(token)
        self._extend(token)

    def find(self, query: Sequence[int]) -> tuple[int, int] | None:
        """The longest suffix of ``query`` that occurs in the text: its length, and the index behind an occurrence."""
        edges, links = self._edges, self._links
        state = length = 0
        for token in query:
            while state and token not in edges[state]:
                state = links[state]
                length = self._lengths[state]
            if token in edges[state]:
                state = edges[state][token]
                length += 1
        return (length, self._ends[state]) if length else None

    def _follow(self, token: int) -> None:
        """Go on with the match in the text as it is without ``token``."""
        edges, links = self._edges, self._links
        state, length = self._matched, self.match_length
        while token not in edges[state]:
            state = links[state]
            if state == _NONE:
                self._matched = self.match_length = self.match_end = 0
                return
            length = self._lengths[state]
        self._matched = edges[state][token]
        self.match_length = length + 1
        self.match_end = self._ends[self._matched]

    def _extend(self, token: int) -> None:
        edges, links, lengths, ends = self._edges, self._links, self._lengths, self._ends
        self.tokens.append(token)
        end = len(self.tokens)
        last, new = self._last, len(edges)
        edges.append({})
        lengths.append(end)
        ends.append(end)
        links.append(0)
        state = last
        while state != _NONE and token not in edges[state]:
            edges[state][token] = new
            state = links[state]
        if state != _NONE:
            target = edges[state][token]
            if lengths[state] + 1 == lengths[target]:
                links[new] = target
            else:
                links[new] = self._clone(state, target, token)
        self._last = new
        # What the text ended with before ends here once more; for the next match this place is the better one.
        ends[links[new]] = end if links[new] else 0
        if self.match_length and lengths[links[self._matched]] >= self.match_length:
            self._matched = links[self._matched]  # it was split by the clone

    def _clone(self, state: int, target: int, token: int) -> int:
        """Split from ``target`` the substrings that occur in more places than its longest one."""
        edges, links, lengths, ends = self._edges, self._links, self._lengths, self._ends
        clone = len(edges)
        edges.append(dict(edges[target]))
        lengths.append(lengths[state] + 1)
        ends.append(ends[target])
        links.append(links[target])
        while state != _NONE and edges[state].get(token) == target:
            edges[state][token] = clone
            state = links[state]
        links[target] = clone
        return clone
