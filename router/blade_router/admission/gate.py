"""The one door every request passes before an endpoint is chosen for it."""

from typing import Protocol

from blade_router.client import Client
from blade_router.request import ClientRequest
from blade_router.usage import Usage


class Ticket:
    """An admitted request. Closed once, however it ends."""

    service: str = ""
    """Whose endpoints it may go to."""
    key_name: str = ""
    """Who asked, for metrics."""

    def close(self, usage: Usage | None) -> None:
        """Give back what was reserved, and settle with what was used where the engine said it."""


class Gate(Protocol):
    """Admits requests."""

    async def admit(self, request: ClientRequest, client: Client) -> Ticket:
        """Wait until it is this request's turn.

        Raises:
            Refused: it may not (401, 403, 404), has asked too much (429), or has waited too long (503).
            ClientGone: the client left meanwhile.
        """
        ...

    async def hold(self, request: ClientRequest, client: Client, ticket: Ticket) -> bool:
        """No endpoint is there: wait for one. False when there is nothing to wait for.

        Raises:
            Refused: no room to wait (503), or it has waited too long (503).
            ClientGone: the client left meanwhile.
        """
        ...


class OpenGate:
    """Lets everyone in at once, and holds nobody."""

    async def admit(self, request: ClientRequest, client: Client) -> Ticket:
        return Ticket()

    async def hold(self, request: ClientRequest, client: Client, ticket: Ticket) -> bool:
        return False
