"""Lending between replicas, in each worker of a router: the first one has the exchange, the others go through it.

So a replica has one ledger, whichever worker a message of another replica or a client's request comes to.
"""

from collections.abc import Sequence

import msgspec

from blade_router.admin.sibling_workers import SiblingWorkers
from blade_router.admission.lending.borrower import Borrower, Need
from blade_router.admission.lending.quota_exchange import QuotaExchange
from blade_router.admission.lending.quota_ledger import Shared
from blade_router.config.token_header import TokenHeader

REPLY, BORROW = b"reply", b"borrow"
"""What the first worker is asked for: the reply to a message of another replica, and what requests lack."""

_decode_needs = msgspec.json.Decoder(list[Need]).decode


class ReplicaLending:
    """One worker's part.

    Args:
        shared: what the replicas share.
        token: the internal token.
        siblings: the connection to the other workers; None where there are none.
        worker: its number.
    """

    def __init__(
        self, shared: Sequence[Shared], token: TokenHeader, siblings: SiblingWorkers | None = None, worker: int = 0
    ) -> None:
        self._siblings = siblings
        self.exchange = QuotaExchange(shared, token) if worker == 0 else None
        self.borrow = Borrower(shared, self._borrow).borrow
        if self.exchange is not None and siblings is not None:
            siblings.commands |= {REPLY: self.reply, BORROW: self._borrow_for_sibling}

    def set_members(self, urls: Sequence[str]) -> None:
        """Take over the base URLs of the replicas' internal routes."""
        if self.exchange is not None:
            self.exchange.set_members(urls)

    async def reply(self, message: bytes) -> bytes:
        """The reply to a message of another replica.

        Raises:
            ValueError: it is none.
        """
        if self.exchange is not None:
            return self.exchange.reply(message)
        assert self._siblings is not None
        reply = await self._siblings.query_first(REPLY, message)
        if not reply:
            raise ValueError("no valid message, or the first worker is being replaced")
        return reply

    async def _borrow(self, needs: Sequence[Need]) -> None:
        if self.exchange is not None:
            await self.exchange.borrow(needs)
        elif self._siblings is not None:
            await self._siblings.query_first(BORROW, msgspec.json.encode(needs))

    async def _borrow_for_sibling(self, message: bytes) -> bytes:
        await self._borrow(_decode_needs(message))
        return b"done"
