"""The interface between policies and the indexes of engines' prefix caches.

There are two indexes: the approximate one (what was sent where, ``prefix_index``) and the exact one (what engines'
KV events report, ``engines.kv_index``). A policy works with either.

A *chain* is ``request.prompt.chain``, the block hashes of a prompt: one 64-bit number for each full block of
``prompt_text.BLOCK`` bytes of its text, hashed over the block and all before it. So equal numbers mean equal prefixes.
"""

from collections.abc import Sequence
from typing import Protocol

from blade_router.compiled.attributes import mypyc_attr
from blade_router.endpoints.endpoint import Endpoint
from blade_router.request.usage import Usage

Chain = Sequence[int]


@mypyc_attr(allow_interpreted_subclasses=True)
class PrefixInsertion:
    """One prompt being inserted into one engine's prefix cache. An index that learns from the outcome subclasses it."""

    __slots__ = ()

    def first_byte(self) -> None:
        """The response has begun and is no error, so the prompt has been computed. Called at most once, before
        ``ended``."""

    def ended(self, usage: Usage | None) -> None:
        """The request is over; without ``first_byte`` before it, the engine may never have seen the prompt, and nothing
        may be left of it.

        ``usage.cached_tokens`` of ``usage.prompt_tokens``, where the engine reports it, is what the match should have
        been.
        """


class PrefixCacheIndex(Protocol):
    """Knows, or estimates, what engines' prefix caches hold. Does no I/O: it is queried once per request."""

    def match(self, chain: Chain, endpoints: Sequence[Endpoint]) -> list[int]:
        """The cached blocks from the start of ``chain`` of each of ``endpoints``, in their order. Changes nothing."""
        ...

    def sent(self, chain: Chain, endpoint: Endpoint, matched: int) -> PrefixInsertion:
        """A request with this chain is on its way to ``endpoint``, which should have ``matched`` blocks of it."""
        ...

    def removed(self, endpoint: Endpoint) -> None:
        """Forget an endpoint that will not come back, in bounded time."""
        ...
