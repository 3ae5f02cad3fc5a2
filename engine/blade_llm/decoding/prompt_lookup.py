"""Prompt lookup as a method of speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from blade_llm.decoding.method import NO_CANDIDATE, Candidate
from blade_llm.decoding.ngram import NgramIndex
from blade_llm.scheduling.request import Request

_INDEXED_A_STEP: Final = 256
"""Tokens that are added to indices in one step: under a millisecond."""
_KINDS: Final = (2, 4, 8, 16)
"""Lengths of a match from which on it is of another kind."""


class Ngram:
    """Prompt lookup (:mod:`blade_llm.decoding.ngram`): no model, good where outputs copy from their context."""

    kinds = len(_KINDS) + 1

    def __init__(self, least_match: int = 1) -> None:
        """``least_match``: tokens that a match has at least."""
        self._least = least_match
        self._indices: dict[Request, NgramIndex] = {}

    def candidates(self, requests: Sequence[Request], rooms: Sequence[int]) -> list[Candidate]:
        """See :class:`~blade_llm.decoding.speculator.Method`."""
        left = _INDEXED_A_STEP
        found: list[Candidate] = []
        for request, room in zip(requests, rooms, strict=True):
            index = self._indices.get(request)
            if index is None:
                index = self._indices[request] = NgramIndex()
            left -= index.extend(request.token_ids, left)
            match = index.match(request.token_ids, self._least, room) if room > 0 else None
            if match is None:
                found.append(NO_CANDIDATE)
            else:
                found.append(Candidate(sum(match.length >= length for length in _KINDS), match.following))
        return found

    def drafted(self, request: Request, count: int) -> tuple[int, tuple[int, int] | None]:
        """All of them, without a model."""
        return count, None

    def forget(self, request: Request) -> None:
        self._indices.pop(request, None)
