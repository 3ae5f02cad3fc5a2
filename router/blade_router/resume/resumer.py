"""Resuming a stream on another replica when its engine is gone."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter
from urllib.parse import urlsplit

import msgspec

from blade_protocol import paths
from blade_router.config.token_header import TokenHeader
from blade_router.endpoints.attempt import Attempt
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.endpoints.quarantine import Trial, is_engine_dead, is_loss
from blade_router.endpoints.retry_budget import DRAINING
from blade_router.http.client import Client
from blade_router.http.upstream.connection import Connection
from blade_router.http.upstream.errors import ConnectFailed, UpstreamError
from blade_router.http.upstream.get import read_body
from blade_router.http.upstream.pool import ConnectionPool
from blade_router.observability.metrics import Metrics
from blade_router.policies import Choice
from blade_router.request.request import ClientRequest
from blade_router.resume.resume_state import ResumeState, supports_resume
from blade_router.resume.stream import ResumableStream

logger = logging.getLogger("blade_router.resume")

MAX_ERROR_BYTES = 64 << 10
"""Bytes of a replica's error that are read."""

Choose = Callable[[Sequence[Endpoint], ClientRequest], Choice]
Relay = Callable[[Connection], Awaitable[UpstreamError | None]]
"""Streams a response to the client; returns why it broke off, if it did."""


class Resumer:
    """Resumes streams on other replicas, through their internal ports.

    Args:
        token: identifies the router to engines; none is sent when left out.
        max_tries: how many replicas may fail at one stream. Those that could not be connected to do not count.
        first_byte_timeout: seconds a replica has for the first byte; 0 for no limit.
    """

    def __init__(
        self,
        endpoints: EndpointSet,
        metrics: Metrics,
        token: TokenHeader | None = None,
        *,
        connect_timeout: float = 1.0,
        max_tries: int = 3,
        first_byte_timeout: float = 0.0,
        stall_timeout: float = 0.0,
    ) -> None:
        self._endpoints = endpoints
        self._metrics = metrics
        self._token = token or TokenHeader(None)
        self._connect_timeout = connect_timeout
        self._max_tries = max_tries
        self._first_byte_timeout = first_byte_timeout
        self._stall_timeout = stall_timeout

    async def resume(
        self,
        state: ResumeState,
        events: ResumableStream,
        lost: Endpoint,
        choose: Choose,
        client: Client,
        relay: Relay,
        trial: Trial,
    ) -> tuple[Endpoint, UpstreamError | None] | None:
        """Relay what follows ``events`` from a replica of the same revision, chosen by ``choose``.

        Returns that replica and why its response broke off, if it did; None when there is no replica, or it refuses.

        Raises:
            ClientGone: the client left.
            Refused: the request is suspected of killing engines; see :class:`Trial`.
        """
        try:
            before, after = state.body(events.token_ids, trial.key)
        except msgspec.MsgspecError as error:
            logger.warning("endpoint %s wrote malformed token ids: %s", lost.name, error)
            self._metrics.resumes["unknown"] += 1
            return None
        tried = [lost]
        charged = 0
        while charged < self._max_tries:
            candidates, _ = self._endpoints.candidates(tried, state.service, state.request.fields.model, trial.key)
            replicas = [each for each in candidates if each.revision == state.revision and supports_resume(each)]
            if not replicas:
                break
            if trial.waits:
                await trial.turn(client)
                continue
            choice = choose(replicas, state.request)
            endpoint = choice.endpoint
            tried.append(endpoint)
            trial.sent_to(endpoint)
            request = state.request
            request.trace_attempt(endpoint.name, f"{choice.reason} resume")
            with self._endpoints.attempt(choice, state.request, client, self._internal_pool(endpoint)) as attempt:
                trace = b"" if request.trace is None else request.trace.line
                response = await self._send(attempt, before, request.body, after, trace)
                if isinstance(response, Connection):
                    self._metrics.resumes["resumed"] += 1
                    logger.info("endpoint %s resumes a stream of %s", endpoint.name, lost.name)
                    events.resumed()
                    state.request.note_attempt(endpoint.name, perf_counter(), "resumed")
                    if state.response_id:
                        self._endpoints.moved_responses.note(state.response_id, endpoint.response_tag)
                    broken = await relay(response)
                    request.end_attempt("" if broken is None else broken.reason)
                    return endpoint, broken
            request.end_attempt("lost" if response is None else str(response or "unreachable"))
            if response is None:
                await trial.lost(endpoint, progressed=False)
                charged += 1
                continue
            if 400 <= response < 500:
                # The request is at fault, or the replicas do not agree about it: a third one will not help.
                self._metrics.resumes["refused"] += 1
                logger.warning("endpoint %s refused to resume a stream of %s: %d", endpoint.name, lost.name, response)
                return None
            charged += response > 0
        self._metrics.resumes["failed" if charged else "nobody"] += 1
        return None

    async def _send(
        self, attempt: Attempt, before: bytes, body: bytes, after: bytes, trace: bytes
    ) -> Connection | int | None:
        """Send the client's ``body`` between what goes before and after it.

        Returns the connection with the rest on it, or another status; 0 without a response that judges the request;
        None when the engine was lost.
        """
        endpoint = attempt.endpoint
        try:
            size = len(before) + len(body) + len(after)
            head = self._head(urlsplit(endpoint.internal_origin).netloc, size, trace) + before
            connection = await attempt.send(head, body, self._first_byte_timeout, self._stall_timeout, after)
        except UpstreamError as error:
            if is_loss(error):
                return None
            endpoint.health.record_failure(str(error), error)
            return 0 if isinstance(error, ConnectFailed) else 599
        if connection.status == 200:
            attempt.first_byte()
            endpoint.health.record_success()
            attempt.end_probe()
            return connection
        if DRAINING in connection.headers:
            endpoint.health.mark_draining()
            return 0
        if connection.status == 401:  # it has not seen the token of this router yet, or of that one no more
            return 0
        if connection.status == 503 and await self._engine_died(connection):
            return None
        if connection.status >= 500:
            endpoint.health.record_failure(f"it answered {connection.status}")
        return connection.status

    @staticmethod
    async def _engine_died(connection: Connection) -> bool:
        """The engine took the request, and died of it before it resumed the stream."""
        try:
            return is_engine_dead(connection.status, await read_body(connection, MAX_ERROR_BYTES))
        except UpstreamError:
            return False

    def _internal_pool(self, endpoint: Endpoint) -> ConnectionPool:
        """A pool for one connection to an internal port, which is not used again."""
        url = urlsplit(endpoint.internal_origin)
        pool = ConnectionPool(url.hostname or "", url.port or 80, connect_timeout=self._connect_timeout)
        pool.close()
        return pool

    def _head(self, authority: str, length: int, trace: bytes) -> bytes:
        head = (
            f"POST {paths.INTERNAL_RESUME} HTTP/1.1\r\nhost: {authority}\r\n"
            f"content-type: application/json\r\ncontent-length: {length}\r\n"
        )
        return b"%b%b%b\r\n" % (head.encode("latin-1"), trace, self._token.lines())
