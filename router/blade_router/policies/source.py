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


class PrefixSource(Protocol):
    """Knows, or believes to know, what engines' prompt caches hold. Does no I/O: it is asked once per request."""

    def match(self, chain: Chain, endpoints: Sequence[Endpoint]) -> list[int]:
        """How many blocks from the start of ``chain`` each of ``endpoints`` holds, in their order. Changes nothing."""
        ...

    def sent(self, chain: Chain, endpoint: Endpoint, matched: int) -> int:
        """A request with this chain is on its way to ``endpoint``, which was thought to hold ``matched`` of it.

        Returns a number that ``ended`` gets back; it means something to the source only.
        """
        ...

    def ended(
        self, chain: Chain, endpoint: Endpoint, matched: int, sent: int, answered: bool, usage: Usage | None
    ) -> None:
        """That request is over. ``answered``: its first byte came, so the engine has computed the prompt.

        ``usage.cached_tokens`` of ``usage.prompt_tokens``, where the engine says it, is what ``matched`` of
        ``len(chain)`` should have been.
        """
        ...

    def first_byte(self, endpoint: Endpoint, sent: int) -> None:
        """That request's answer has begun: its prompt has been computed. Comes at most once, before ``ended``."""
        ...

    def removed(self, endpoint: Endpoint) -> None:
        """This endpoint will not come back: forget it, in bounded time."""
        ...
