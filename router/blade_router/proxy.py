"""The data path: a request comes in, an endpoint is chosen, its answer goes out.

Nothing is sent to the client before the answer is worth sending: a whole one when it does not stream, the first event
when it does. Up to there a failing engine costs the client nothing but time, because the request goes to another one.
A web framework here would cost more than everything else the router does.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence

from blade_protocol import headers as names
from blade_protocol import paths
from blade_router.admission import Gate, OpenGate, Ticket
from blade_router.attempts import RETRIED, Attempts
from blade_router.client import Client
from blade_router.endpoints import Endpoint, EndpointSet
from blade_router.engines import KvIndex
from blade_router.errors import ClientGone, Headers, Refused, header_of
from blade_router.http.head import RawRequest
from blade_router.metrics import Metrics
from blade_router.outcome import Observe, Outcome
from blade_router.policies import Choice, Policy
from blade_router.relay import EVENT_END, Answer, forward, hold
from blade_router.request import REQUEST_ID, ClientRequest, forwardable, read_request
from blade_router.resume import (
    Continuation,
    ResumableStream,
    Resumer,
    answers_resume,
    asking,
    ticket_of,
)
from blade_router.retries import RetryBudget
from blade_router.upstream import Connection
from blade_router.upstream_errors import UpstreamError
from blade_router.usage import TAIL, usage_of, usage_of_stream

logger = logging.getLogger("blade_router.proxy")

CLIENT_GONE = 499
"""Status under which requests are counted whose client left (nginx's)."""
BROKEN = 502
"""The same of answers that began well and broke off."""

_ENDPOINT = names.ENDPOINT.encode()
_REASON = names.ROUTE_REASON.encode()
_JSON = [(b"content-type", b"application/json")]
_KV_BLOCKS = names.KV_BLOCKS.encode()
_ASK_FOR_BLOCKS = _KV_BLOCKS + b": 1\r\n"


def is_models(path: str) -> bool:
    """It asks which models there are, or for one of them."""
    return path == paths.MODELS or path.startswith(f"{paths.MODELS}/")


class Proxy:
    """Answers what engines answer.

    Args:
        max_tries: how many endpoints may work on one request before its first byte. Endpoints that could not
            be connected to or say that they drain have not worked on it and do not count.
        first_byte_timeout: seconds an endpoint has for the first byte of a body; 0 for no limit.
        stall_timeout: seconds without a byte in an answer that has begun; 0 for no limit.
        look_again: looks for endpoints before a request is refused for want of any; True when something changed.
        resumer: asks replicas for the rest of streams; one without a token when left out.
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
        stall_timeout: float = 0.0,
        look_again: Callable[[], bool] = lambda: False,
        gate: Gate | None = None,
        resumer: Resumer | None = None,
        list_models: Callable[[ClientRequest], Awaitable[bytes | None]] | None = None,
    ) -> None:
        self.endpoints = endpoints
        self.policy = policy
        self.kv_index: KvIndex | None = None
        """Set while the policy is kv-aware: it learns from answers."""
        self.gate: Gate = gate or OpenGate()
        self._resumer = resumer or Resumer(endpoints, metrics, None, max_tries=max_tries)
        self._list_models = list_models
        self.observers: Sequence[Observe] = ()
        """Hear of each request that has ended."""
        self._metrics = metrics
        self._budget = RetryBudget(lambda: metrics.live)
        metrics.retries_exhausted = lambda: self._budget.exhausted
        self._max_tries = max_tries
        self._first_byte_timeout = first_byte_timeout
        self._stall_timeout = stall_timeout
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
            if request.method == "GET" and is_models(request.path) and self._list_models is not None:
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
        except Exception:
            status = 500
            raise
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
        attempts = Attempts(self._budget)
        ids = asking(request) if len(self.endpoints.all) > 1 else b""
        while attempts.worked < self._max_tries:
            candidates, panic = self.endpoints.candidates(attempts.tried, ticket.service, self.policy.adapter(request))
            if not candidates:
                if await self._others_come(attempts, request, client, ticket):
                    continue
                break
            if attempts.careful:
                if not await attempts.pay():
                    break
                continue  # who may be asked has perhaps changed meanwhile
            choice = self.policy.choose(candidates, request)
            endpoint = choice.endpoint
            if attempts.why:
                self._metrics.retries[attempts.why] += 1
            request.ours = ours = self._headers(request, choice, panic, attempts.why)
            request.tries += 1
            ours += ticket.headers
            attempts.tried.append(endpoint)
            choice.sent()
            trial = endpoint.breaker.enter()
            index = self.kv_index if endpoint.engine == "blade" else None
            if index is not None and not index.wanted(request.prompt.chain):
                index = None
            extra = ids if ids and answers_resume(endpoint) else b""
            if index is not None:
                extra += _ASK_FOR_BLOCKS
            connection: Connection | None = None
            try:
                head = request.head_for(endpoint.authority, extra)
                connection = await endpoint.pool.exchange(
                    head, request.body, client.attach, self._first_byte_timeout, self._stall_timeout
                )
                answer = await hold(connection)
                choice.first_byte()
                if index is not None:
                    index.learn(request.prompt.chain, header_of(connection.headers, _KV_BLOCKS))
                if answer.status in RETRIED and answer.complete:
                    attempts.refused(endpoint, answer, ours, panic=panic)
                    continue
                attempts.answered(endpoint, answer.status)
                lost = await self._relay(answer, ours, connection, request, client)
                if lost is None:
                    return answer.status
            except UpstreamError as error:
                attempts.broke(endpoint, error)
                logger.debug("request %s failed on %s: %s", request.id.decode("latin-1"), endpoint.name, error)
                continue
            finally:
                if trial:
                    endpoint.breaker.leave()
                client.detach()
                if connection is not None:
                    endpoint.pool.release(connection)
                choice.ended(request.usage)
            return await self._go_on(lost, answer, endpoint, request, client)
        attempts.give_up()
        if attempts.last is None:
            raise self._nobody(attempts.tried, attempts.why)
        answer, ours = attempts.last
        if answer.status == 503 and not header_of(answer.headers, b"retry-after"):
            ours.append((b"retry-after", b"1"))
        await self._relay(answer, ours, None, request, client)
        return answer.status

    async def _others_come(self, attempts: Attempts, request: ClientRequest, client: Client, ticket: Ticket) -> bool:
        """Nobody is left to be asked: whether there is somebody now."""
        if self._look_again():
            return True  # a replica that became ready since the last look
        if attempts.may_wait and await self.gate.hold(request, client, ticket):
            attempts.start_over()
            return True
        return attempts.ask_the_lost_again()

    async def _relay(
        self, answer: Answer, ours: Headers, connection: Connection | None, request: ClientRequest, client: Client
    ) -> UpstreamError | None:
        """Send what was held back, then the rest as it comes; returns why it broke off, if it did."""
        request.status = answer.status
        whole = answer.complete and answer.status not in (204, 304)
        headers = forwardable(answer.headers, len(answer.body) if whole else None)
        if answer.events is not None and not whole:  # what the engine announced is not what the client gets
            headers = [header for header in headers if header[0] != b"content-length"]
        await client.start(answer.status, headers + ours)
        request.answered = time.perf_counter()
        request.streamed = answer.events is not None
        if answer.events is not None:
            request.events = answer.body.count(EVENT_END)
        if answer.complete or connection is None:
            request.usage = usage_of(answer.body) if answer.events is None else usage_of_stream(answer.body[-TAIL:])
            await client.finish(answer.body)
            return None
        await client.write(answer.body)
        return await forward(connection, answer.events, request, client)

    async def _go_on(
        self, why: UpstreamError, answer: Answer, endpoint: Endpoint, request: ClientRequest, client: Client
    ) -> int:
        """Have other replicas write the rest of a stream, as often as one is lost; else end it in an error event.

        Returns the status the request counts with.
        """
        lost: UpstreamError | None = why
        events = answer.events
        ticket = ticket_of(request, answer.headers, endpoint)
        rest: Continuation | None = None
        try:
            while lost is not None:
                logger.warning("an answer of %s broke off after it had begun: %s", endpoint.name, str(lost))
                endpoint.record_failure(str(lost), lost)
                if rest is not None:
                    rest.close(None)
                    rest = None
                if events is None or events.split:
                    return BROKEN  # It stays incomplete and the server closes the connection: the client can tell.
                if events.over:
                    request.usage = usage_of_stream(events.last)
                    await client.finish()
                    return answer.status
                if ticket is not None and isinstance(events, ResumableStream):
                    rest = await self._resumer.resume(ticket, events, endpoint, self.policy.choose, client)
                if rest is None:
                    await client.finish(events.broken(lost.reason))
                    return BROKEN
                endpoint = rest.endpoint
                lost = await forward(rest.connection, events, request, client)
            return answer.status
        finally:
            if rest is not None:
                rest.close(request.usage)

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
