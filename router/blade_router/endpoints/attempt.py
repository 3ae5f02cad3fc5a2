"""One try of a request at one endpoint, and everything that is taken for it and must be given back."""

from collections.abc import Awaitable
from typing import Any, Protocol, Self

from blade_router.endpoints.endpoint import Endpoint
from blade_router.http.client import Client
from blade_router.http.upstream.connection import Connection
from blade_router.http.upstream.pool import ConnectionPool


class Choice(Protocol):
    """A policy's choice of an endpoint. It is notified once each of how the attempt goes on."""

    endpoint: Endpoint

    def sent(self) -> None: ...

    def first_byte(self) -> None: ...

    def kept_waiting(self) -> None: ...

    def ended(self, usage: Any) -> None: ...


class Request(Protocol):
    """The request that is tried."""

    usage: Any
    """Tokens its response says it used; None while that is not known."""


class Attempt:
    """One try, entered with ``with``: it counts as in flight, is the endpoint's half-open probe where that is
    due, and holds the connection. Leaving it releases all of them, however the try ended.

    Args:
        pool: where the connection comes from; None: the endpoint's own pool.
    """

    __slots__ = ("_choice", "_client", "_connection", "_pool", "_probing", "_request", "endpoint")

    def __init__(self, choice: Choice, request: Request, client: Client, pool: ConnectionPool | None = None) -> None:
        self.endpoint = endpoint = choice.endpoint
        self._choice = choice
        self._request = request
        self._client = client
        self._pool = endpoint.pool if pool is None else pool
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        endpoint = self.endpoint
        self._choice.sent()
        endpoint.in_flight += 1
        self._probing = endpoint.health.breaker.begin_probe()
        return self

    def send(
        self,
        head: bytes,
        body: bytes,
        first_byte_timeout: float = 0.0,
        stall_timeout: float = 0.0,
        tail: bytes = b"",
    ) -> Awaitable[Connection]:
        """Send the request; the result is awaited for status and headers of the response.

        ``tail``: what follows a large body, which need not be copied for it.

        Raises:
            UpstreamError: no connection, or it failed before the headers.
            ClientGone: the client left.
        """
        return self._pool.exchange(head, body, self._attach, first_byte_timeout, stall_timeout, tail)

    def first_byte(self) -> None:
        """The response has begun, and is no error: what the endpoint has computed is in its prefix cache."""
        self._choice.first_byte()

    def end_probe(self) -> None:
        """The endpoint is judged already: what it still sends is no probe, and the next one may begin."""
        if self._probing:
            self._probing = False
            self.endpoint.health.breaker.end_probe()

    def __exit__(self, *exception: object) -> None:
        endpoint = self.endpoint
        self.end_probe()
        self._client.detach()
        if self._connection is not None:
            self._pool.release(self._connection)
        endpoint.in_flight -= 1
        if self._client.slow:
            self._choice.kept_waiting()
        self._choice.ended(self._request.usage)

    def _attach(self, connection: Connection) -> None:
        """The pool is about to use this connection: abort it when the client leaves."""
        self._connection = connection
        self._client.attach(connection)
