"""The data path: a request comes in, an endpoint is chosen, its answer goes out.

Nothing is sent to the client before the answer is worth sending: a whole one when it does not stream, the first event
when it does. Up to there a failing engine costs the client nothing but time, because the request goes to another one.
A web framework here would cost more than everything else the router does.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass

from blade_protocol import headers as names
from blade_protocol import paths
from blade_router.admission import Gate, OpenGate, Ticket
from blade_router.client import Client
from blade_router.endpoints import Endpoint, EndpointSet, settle
from blade_router.engines import KvIndex
from blade_router.errors import ClientGone, Headers, Refused
from blade_router.http.head import RawRequest
from blade_router.metrics import Metrics
from blade_router.outcome import Observe, Outcome
from blade_router.policies import Choice, Policy
from blade_router.request import REQUEST_ID, ClientRequest, forwardable, read_request
from blade_router.resume import EventStream
from blade_router.retries import RetryBudget, asked_to_wait
from blade_router.upstream import ConnectFailed, Connection, ConnectionLost, UpstreamError
from blade_router.usage import TAIL, usage_of, usage_of_stream

logger = logging.getLogger("blade_router.proxy")

RETRIED = frozenset((500, 502, 503))
"""Answers that say "not here, not now": another endpoint may do better. A 4xx is the client's and passes through."""
MAX_HELD = 8 << 20
"""Bytes of a unary answer kept back so that it can be asked for again elsewhere; a longer one is streamed."""
CLIENT_GONE = 499
"""Status under which requests are counted whose client left (nginx's)."""

EVENT_END = b"\n\n"

_ENDPOINT = names.ENDPOINT.encode()
_REASON = names.ROUTE_REASON.encode()
_JSON = [(b"content-type", b"application/json")]
_DRAINING = (names.DRAINING.encode(), b"1")
_KV_BLOCKS = names.KV_BLOCKS.encode()
_ASK_FOR_BLOCKS = _KV_BLOCKS + b": 1\r\n"


@dataclass(slots=True)
class Answer:
    """The beginning of an engine's answer that is held back, or all of it."""

    status: int
    headers: Headers
    body: bytes
    """What may be sent now."""
    complete: bool
    events: EventStream | None
    """Set for a server-sent-event stream."""


class Proxy:
    """Answers what engines answer.

    Args:
        max_tries: how many endpoints may work on one request before its first byte. Endpoints that could not
            be connected to or say that they drain have not worked on it and do not count.
        first_byte_timeout: seconds an endpoint has for the first byte of a body; 0 for no limit.
        look_again: looks for endpoints before a request is refused for want of any; True when something changed.
        list_models: answers a GET of ``/v1/models``; None where an engine is to do it.
    """

    def __init__(
        self,
        endpoints: EndpointSet,
        policy: Policy,
        metrics: Metrics,
        *,
        max_tries: int = 3,
        first_byte_timeout: float = 0.0,
        look_again: Callable[[], bool] = lambda: False,
        gate: Gate | None = None,
        list_models: Callable[[ClientRequest], Awaitable[bytes | None]] | None = None,
    ) -> None:
        self.endpoints = endpoints
        self.policy = policy
        self.kv_index: KvIndex | None = None
        """Set while the policy is kv-aware: it learns from answers."""
        self.gate: Gate = gate or OpenGate()
        self._list_models = list_models
        self.observers: Sequence[Observe] = ()
        """Hear of each request that has ended."""
        self._metrics = metrics
        self._budget = RetryBudget(lambda: metrics.live)
        metrics.retries_exhausted = lambda: self._budget.exhausted
        self._max_tries = max_tries
        self._first_byte_timeout = first_byte_timeout
        self._look_again = look_again

    async def __call__(self, raw: RawRequest, client: Client) -> None:
        started = time.perf_counter()
        metrics = self._metrics
        metrics.begin(started)
        status = CLIENT_GONE
        request: ClientRequest | None = None
        key = ""
        try:
            request = read_request(raw)
            if request.method == "GET" and request.path.startswith(paths.MODELS) and self._list_models is not None:
                listing = await self._list_models(request)
                if listing is not None:
                    status = 200
                    await client.start(200, [*_JSON, (b"content-length", b"%d" % len(listing))])
                    await client.finish(listing)
                    return
            ticket = await self.gate.admit(request, client)
            key = ticket.key_name
            try:
                status = await self._serve(request, client, ticket)
            except Refused as refusal:
                request.status = refusal.status
                raise
            finally:
                ticket.close(request.usage)
        except ClientGone:
            pass
        except Refused as refusal:
            status = refusal.status
            metrics.refused[refusal.code] += 1
            await client.refuse(refusal)
        finally:
            ended = time.perf_counter()
            if request is None:
                metrics.end(status, started, 0.0, False, "", None, None)
            else:
                fields, answered = request.fields, request.answered
                metrics.end(status, started, answered, request.streamed, key, fields.model, request.usage)
            if self.observers:
                outcome = Outcome(raw, client, request, key, status, started, ended)
                for observe in self.observers:
                    observe(outcome)

    async def _serve(self, request: ClientRequest, client: Client, ticket: Ticket) -> int:
        """Try endpoints until one answers; returns the status the client got."""
        tried: list[Endpoint] = []
        failed: list[Endpoint] = []
        worked = 0
        careful = lost = False
        why = ""
        last: tuple[Answer, Headers] | None = None
        while worked < self._max_tries:
            candidates, panic = self.endpoints.candidates(tried, ticket.service)
            if not candidates:
                if self._look_again():
                    continue  # a replica that became ready since the last look
                if not failed and await self.gate.hold(request, client, ticket):
                    tried.clear()
                    last, why, careful = None, "", False
                    continue
                if lost and not failed:
                    # Nobody is left but who lost the connection: asking again tells whether it is still there.
                    tried.clear()
                    lost, careful = False, True
                    continue
                break
            if careful:
                if not self._budget.take(time.perf_counter()):
                    break
                await self._budget.pause(worked)
            choice = self.policy.choose(candidates, request)
            endpoint = choice.endpoint
            if why:
                self._metrics.retries[why] += 1
            request.ours = ours = self._headers(request, choice, panic, why)
            ours += ticket.headers
            request.tries += 1
            tried.append(endpoint)
            choice.sent()
            trial = endpoint.breaker.enter()
            connection: Connection | None = None
            index = self.kv_index
            asks = index is not None and endpoint.engine == "blade" and index.wanted(request.prompt.chain)
            head = request.head_for(endpoint.authority, _ASK_FOR_BLOCKS if asks else b"")
            try:
                connection = await endpoint.pool.exchange(head, request.body, client.attach, self._first_byte_timeout)
                answer = await hold(connection)
                choice.first_byte()
                if asks and index is not None:
                    index.learn(request.prompt.chain, header_of(connection.headers, _KV_BLOCKS))
                if answer.status in RETRIED and answer.complete:
                    last = (answer, ours)
                    if _DRAINING in connection.headers:
                        why = "draining"
                        endpoint.mark_draining()
                        careful = False
                        continue
                    why = str(answer.status)
                    if panic and answer.status == 503:  # thought not to be ready, and says so
                        careful = False
                        continue
                    careful = True
                    worked += 1
                    if seconds := asked_to_wait(answer.status, answer.headers):
                        endpoint.pause(seconds)
                    else:
                        failed.append(endpoint)
                    continue
                if answer.status < 500:
                    endpoint.record_success()
                    if failed:
                        settle(failed, answered=True)
                        failed.clear()
                await self._relay(answer, ours, endpoint, connection, request, client)
                return answer.status
            except UpstreamError as error:
                why = error.reason
                absent = isinstance(error, ConnectFailed)
                lost = isinstance(error, ConnectionLost)
                careful = not absent and (worked > 0 or not lost)
                worked += not absent
                endpoint.record_failure(str(error), error)
                logger.debug("request %s failed on %s: %s", request.id.decode("latin-1"), endpoint.name, error)
            finally:
                choice.ended(request.usage)
                if trial:
                    endpoint.breaker.leave()
                client.detach()
                if connection is not None:
                    endpoint.pool.release(connection)
        settle(failed, answered=False)
        if last is None:
            raise self._nobody(tried, why)
        answer, ours = last
        if answer.status == 503 and all(name != b"retry-after" for name, _ in answer.headers):
            ours.append((b"retry-after", b"1"))
        await self._relay(answer, ours, tried[-1], None, request, client)
        return answer.status

    async def _relay(
        self,
        answer: Answer,
        ours: Headers,
        endpoint: Endpoint,
        connection: Connection | None,
        request: ClientRequest,
        client: Client,
    ) -> None:
        """Send what was held back, then the rest as it comes."""
        request.status = answer.status
        whole = answer.complete and answer.status not in (204, 304)
        headers = forwardable(answer.headers, len(answer.body) if whole else None) + ours
        await client.start(answer.status, headers)
        request.answered = time.perf_counter()
        request.streamed = answer.events is not None
        if answer.events is not None:
            request.events = answer.body.count(EVENT_END)
        if answer.complete or connection is None:
            request.usage = usage_of(answer.body) if answer.events is None else usage_of_stream(answer.body[-TAIL:])
            await client.finish(answer.body)
            return
        events = answer.events
        await client.write(answer.body)
        try:
            while True:
                chunk = await connection.read()
                if events is not None:
                    chunk = events.feed(chunk)
                    request.events += chunk.count(EVENT_END)
                if connection.at_end:
                    break
                if chunk:
                    await client.write(chunk)
        except UpstreamError as error:
            logger.warning("an answer of %s broke off after it had begun: %s", endpoint.name, error)
            endpoint.record_failure(str(error), error)
            if events is not None:
                await client.finish(events.broken(error.reason))
            # Otherwise the answer stays incomplete and the server closes the connection: the client can tell.
            return
        if events is not None:
            chunk += events.end()
            request.usage = usage_of_stream(events.last)
        await client.finish(chunk)

    def _headers(self, request: ClientRequest, choice: Choice, panic: bool, why: str) -> Headers:
        """The headers the router adds to an answer: who answered, why that one, and the request's id."""
        reason = choice.reason
        if panic:
            reason += " panic"
        if why:
            reason += f" retry={why}"
        return [(REQUEST_ID, request.id), (_ENDPOINT, choice.endpoint.name_header), (_REASON, reason.encode("ascii"))]

    def _nobody(self, tried: Collection[Endpoint], why: str) -> Refused:
        if not self.endpoints.all:
            message, code = "no engine is registered with this router yet; try again shortly", "no_endpoint"
        elif not tried:
            message, code = "every engine of this service is draining; try again shortly", "no_endpoint"
        else:
            message = f"no engine could answer ({len(tried)} tried, last failure: {why}); try again shortly"
            code = "engines_unavailable"
        return Refused(503, message, code=code, retry_after=1)


def header_of(headers: Headers, wanted: bytes) -> bytes:
    """The first header of that name; empty without one."""
    return next((value for name, value in headers if name == wanted), b"")


async def hold(connection: Connection) -> Answer:
    """Read the part of an answer that has to be there before the client gets any of it.

    Raises:
        UpstreamError: the engine failed while nothing had been sent: the request can go elsewhere.
    """
    headers = connection.headers
    event_stream = encoded = False
    for name, value in headers:
        if name == b"content-type":
            event_stream = value.lower().startswith(b"text/event-stream")
        elif name == b"content-encoding":
            encoded = True
    events = EventStream() if event_stream and not encoded else None
    parts: list[bytes] = []
    size = 0
    while chunk := await connection.read():
        part = events.feed(chunk) if events is not None else chunk
        parts.append(part)
        size += len(part)
        if connection.at_end or (size and (event_stream or size >= MAX_HELD)):
            break
    complete = connection.at_end
    if complete and events is not None:
        parts.append(events.end())
    return Answer(
        status=connection.status,
        headers=headers,
        body=parts[0] if len(parts) == 1 else b"".join(parts),
        complete=complete,
        events=events,
    )
