"""Who holds which prompt: the seam between policies and what knows about prompt caches.

Two things know: the approximate index (what was sent where, ``prefix_index``) and the exact one (what engines say they
hold, ``engines.kv_index``). A policy does not care which it asks.

A *chain* is ``request.prompt.chain``: one 64-bit number for each full block of ``prompt_text.BLOCK`` bytes of the
prompt's text, each a hash of its own block and of all before it. So equal numbers mean equal prefixes.
"""

from collections.abc import Sequence
from typing import Protocol

from blade_router.endpoints import Endpoint
from blade_router.usage import Usage

Chain = Sequence[int]


class Placement:
    """One prompt on its way into one engine's cache. A source that learns from what happens makes a subclass."""

    __slots__ = ()

    def first_byte(self) -> None:
        """The answer has begun, so the prompt has been computed. Comes at most once, before ``ended``."""

    def ended(self, usage: Usage | None) -> None:
        """The request is over; without ``first_byte`` before it, the engine may never have seen the prompt.

        ``usage.cached_tokens`` of ``usage.prompt_tokens``, where the engine says it, is what the match should have
        been.
        """


class PrefixSource(Protocol):
    """Knows, or believes to know, what engines' prompt caches hold. Does no I/O: it is asked once per request."""

    def match(self, chain: Chain, endpoints: Sequence[Endpoint]) -> list[int]:
        """How many blocks from the start of ``chain`` each of ``endpoints`` holds, in their order. Changes nothing."""
        ...

    def sent(self, chain: Chain, endpoint: Endpoint, matched: int) -> Placement:
        """A request with this chain is on its way to ``endpoint``, which was thought to hold ``matched`` of it."""
        ...

    def removed(self, endpoint: Endpoint) -> None:
        """This endpoint will not come back: forget it, in bounded time."""
        ...
