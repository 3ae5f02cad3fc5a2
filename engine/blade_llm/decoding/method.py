"""What a method of speculative decoding is: it proposes candidates for draft tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from blade_llm.scheduling.request import Request


class Candidate(NamedTuple):
    """Tokens that could be the draft of one decode."""

    kind: int
    """Candidates of one kind are accepted alike. -1: there is none."""
    tokens: list[int] | None
    """None: the runner's draft model makes them."""


NO_CANDIDATE: Final = Candidate(-1, None)


class Method(Protocol):
    """Where draft tokens come from."""

    @property
    def kinds(self) -> int:
        """The number of kinds of candidates."""

    def candidates(self, requests: Sequence[Request], rooms: Sequence[int]) -> list[Candidate]:
        """A candidate for each request, of at most ``rooms`` tokens."""

    def drafted(self, request: Request, count: int) -> tuple[int, tuple[int, int] | None]:
        """So many tokens of the request's candidate are worth verifying: how many of them there will be, and the
        positions that the draft model is to compute before, from the first to before the second (None: none)."""

    def forget(self, request: Request) -> None:
        """The request has ended."""
