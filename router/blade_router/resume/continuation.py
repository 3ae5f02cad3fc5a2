"""Another replica goes on with a stream whose engine is gone."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from blade_protocol import headers as names
from blade_protocol import paths
from blade_router.client import Client
from blade_router.endpoints import Endpoint, EndpointSet
from blade_router.metrics import Metrics
from blade_router.policies import Choice
from blade_router.pool import ConnectionPool
from blade_router.request import ClientRequest
from blade_router.resume.stream import ResumableStream
from blade_router.resume.ticket import Ticket, answers_resume
from blade_router.retries import DRAINING
from blade_router.upstream import Connection
from blade_router.upstream_errors import ConnectFailed, UpstreamError
from blade_router.usage import Usage

logger = logging.getLogger("blade_router.resume")

Choose = Callable[[Sequence[Endpoint], ClientRequest], Choice]


class Continuation:
    """The rest of a stream, as it comes from another replica. To be closed, however it ends."""

    def __init__(self, choice: Choice, pool: ConnectionPool, connection: Connection, client: Client) -> None:
        self.endpoint = choice.endpoint
        self.connection = connection
        self._choice = choice
        self._pool = pool
        self._client = client

    def close(self, usage: Usage | None) -> None:
        self._choice.ended(usage)
        self._client.detach()
        self._pool.discard(self.connection)


class Resumer:
    """Asks replicas for the rest of streams, on their internal ports.

    Args:
        token_file: holds the internal token, and may change; it is read for each stream. None: no token is sent.
        max_tries: how many replicas may fail at one stream. Those that could not be connected to do not count.
        first_byte_timeout: seconds a replica has for the first byte; 0 for no limit.
    """

    def __init__(
        self,
        endpoints: EndpointSet,
        metrics: Metrics,
        token_file: Path | None,
        *,
        connect_timeout: float = 1.0,
        max_tries: int = 3,
        first_byte_timeout: float = 0.0,
        stall_timeout: float = 0.0,
    ) -> None:
        self._endpoints = endpoints
        self._metrics = metrics
        self._token_file = token_file
        self._connect_timeout = connect_timeout
        self._max_tries = max_tries
        self._first_byte_timeout = first_byte_timeout
        self._stall_timeout = stall_timeout

    async def resume(
        self, ticket: Ticket, events: ResumableStream, dead: Endpoint, choose: Choose, client: Client
    ) -> Continuation | None:
        """What follows ``events``, from a replica of the same revision that ``choose`` picks; None when there is none,
        or it refuses.

        Raises:
            ClientGone: nobody waits for it any more.
        """
        try:
            body = ticket.body(events.token_ids)
        except msgspec.MsgspecError as error:
            logger.warning("endpoint %s wrote token ids that are none: %s", dead.name, error)
            self._metrics.resumes["unknown"] += 1
            return None
        tried = [dead]
        worked = 0
        while worked < self._max_tries:
            candidates, _ = self._endpoints.candidates(tried, ticket.service, ticket.request.fields.model)
            alike = [each for each in candidates if each.revision == ticket.revision and answers_resume(each)]
            if not alike:
                break
            choice = choose(alike, ticket.request)
            endpoint = choice.endpoint
            tried.append(endpoint)
            found = await self._ask(choice, body, client)
            if isinstance(found, Continuation):
                self._metrics.resumes["resumed"] += 1
                logger.info("endpoint %s goes on with a stream of %s", endpoint.name, dead.name)
                events.resumed()
                return found
            if 400 <= found < 500:
                # The request is at fault, or the replicas do not agree about it: a third one will not help.
                self._metrics.resumes["refused"] += 1
                logger.warning("endpoint %s refused to go on with a stream of %s: %d", endpoint.name, dead.name, found)
                return None
            worked += found > 0
        self._metrics.resumes["failed" if worked else "nobody"] += 1
        return None

    async def _ask(self, choice: Choice, body: bytes, client: Client) -> Continuation | int:
        """The rest, or the status of another answer; 0 without an answer that says anything of the request."""
        endpoint = choice.endpoint
        url = urlsplit(endpoint.internal_origin)
        pool = ConnectionPool(url.hostname or "", url.port or 80, connect_timeout=self._connect_timeout)
        connection: Connection | None = None
        continuation: Continuation | None = None
        trial = endpoint.breaker.enter()
        choice.sent()
        try:
            connection = await pool.exchange(
                self._head(url.netloc, len(body)),
                body,
                client.attach,
                self._first_byte_timeout,
                self._stall_timeout,
            )
            if connection.status == 200:
                choice.first_byte()
                endpoint.record_success()
                continuation = Continuation(choice, pool, connection, client)
                return continuation
            if DRAINING in connection.headers:
                endpoint.mark_draining()
                return 0
            if connection.status >= 500:
                endpoint.record_failure(f"it answered {connection.status}")
            return connection.status
        except UpstreamError as error:
            endpoint.record_failure(str(error), error)
            return 0 if isinstance(error, ConnectFailed) else 599
        except (OSError, UnicodeError) as error:
            logger.warning("the internal token cannot be read: %s", error)
            return 599
        finally:
            if trial:
                endpoint.breaker.leave()
            if continuation is None:
                choice.ended(None)
                client.detach()
                if connection is not None:
                    pool.discard(connection)

    def _head(self, authority: str, length: int) -> bytes:
        head = (
            f"POST {paths.INTERNAL_RESUME} HTTP/1.1\r\nhost: {authority}\r\n"
            f"content-type: application/json\r\ncontent-length: {length}\r\n"
        )
        if self._token_file is not None:
            head += f"{names.INTERNAL_TOKEN}: {self._token_file.read_text().strip()}\r\n"
        return f"{head}\r\n".encode("latin-1")
