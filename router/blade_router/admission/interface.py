"""Admission control as the data path sees it: every request passes it before an endpoint is chosen."""

from collections.abc import Sequence
from typing import Protocol

from blade_router.admission.request_queue import QueuedRequest
from blade_router.http.client import Client
from blade_router.request.request import ClientRequest
from blade_router.request.usage import Usage


class Admission:
    """An admitted request. Closed once, however it ends."""

    service: str = ""
    """The service whose endpoints it may go to."""
    adapter: str | None = None
    """The adapter that an endpoint has to have for it."""
    key_name: str = ""
    """Whose request it is, for metrics."""
    queued: QueuedRequest | None = None
    """Its place among the requests engines work on, once it has one."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    """Rate-limit headers of its response."""
    waited_seconds: float = 0.0
    """How long it has waited for endpoints so far, all times together."""

    def first_byte(self) -> None:
        """The engine has begun to respond."""
        if self.queued is not None:
            self.queued.first_token()

    def close(self, usage: Usage | None) -> None:
        """Give back what was reserved, and settle with what was used where the engine said it."""


class AdmissionControl(Protocol):
    """Admits requests."""

    async def admit(self, request: ClientRequest, client: Client) -> Admission:
        """Wait until it is this request's turn.

        Raises:
            Refused: it may not (401, 403, 404), is over a limit (429), or has waited too long (503).
            ClientGone: the client left meanwhile.
        """
        ...

    async def wait_for_endpoint(self, request: ClientRequest, client: Client, admission: Admission) -> bool:
        """No endpoint is there: wait for one. False when there is nothing to wait for.

        Raises:
            Refused: no room to wait (503), or it has waited too long (503).
            ClientGone: the client left meanwhile.
        """
        ...


class AdmitAll:
    """Admits every request at once, and waits for no endpoint."""

    async def admit(self, request: ClientRequest, client: Client) -> Admission:
        return Admission()

    async def wait_for_endpoint(self, request: ClientRequest, client: Client, admission: Admission) -> bool:
        return False
