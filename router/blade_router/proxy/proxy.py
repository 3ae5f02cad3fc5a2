"""The data path: a request comes in, an endpoint is picked, its response goes out.

Nothing is sent to the client before the response is worth sending: a whole one when it does not stream, the first event
when it does. Up to there a failing engine costs the client nothing but time, because the request is retried elsewhere.
A web framework here would cost more than everything else the router does.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from blade_protocol import headers as names
from blade_router.admission import Admission, AdmissionControl, AdmitAll
from blade_router.config.token_header import TokenHeader
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.endpoints.quarantine import Quarantine, Trial, is_engine_dead, is_loss
from blade_router.endpoints.retry_budget import RetryBudget
from blade_router.engines import KvIndex
from blade_router.engines.kv_index import index_to_teach
from blade_router.http.client import Client
from blade_router.http.errors import ClientGone, Headers, Refused, header_of
from blade_router.http.head import RawRequest
from blade_router.http.upstream.connection import Connection
from blade_router.http.upstream.errors import UpstreamError
from blade_router.observability.metrics import Metrics
from blade_router.observability.outcome import Observe, Outcome
from blade_router.observability.recent_requests import RecentRequests
from blade_router.policies import Choice, Policy
from blade_router.policies.load import choosable
from blade_router.proxy.error_events import error_event, wants_stream
from blade_router.proxy.model_list import is_models
from blade_router.proxy.relay import BufferedResponse, begin, buffer_head, forward, send_whole
from blade_router.proxy.response_headers import REDIRECTS, redirected, request_ids
from blade_router.proxy.response_holder import has_holder, holders, is_about_responses, tag_lines
from blade_router.proxy.retry_state import RETRIABLE, RetryState, refuses_token
from blade_router.proxy.revisions import count_failure, count_rejection, count_response
from blade_router.proxy.shadow import Shadows
from blade_router.proxy.unavailable import unavailable
from blade_router.request.output_size import samples
from blade_router.request.part_limits import PartLimits
from blade_router.request.read_usage import usage_of_stream
from blade_router.request.request import NO_COMMENTS, ClientRequest, read_request
from blade_router.resume import ResumableStream, Resumer, read_resume_state, resume_headers, supports_resume

logger = logging.getLogger("blade_router.proxy")

CLIENT_GONE = 499
"""Status under which requests are counted whose client left (nginx's)."""
BROKEN = 502
"""The same of responses that began well and broke off."""

_ENDPOINT = names.ENDPOINT.encode()
_REASON = names.ROUTE_REASON.encode()
_JSON = [(b"content-type", b"application/json")]
_KV_BLOCKS = names.KV_BLOCKS.encode()
_REQUEST_BLOCKS = _KV_BLOCKS + b": 1\r\n"


class Proxy:
    """Serves the requests that go to engines.

    Args:
        max_tries: how many endpoints may work on one request before its first byte. Endpoints that could not
            be connected to or say that they drain have not worked on it and do not count.
        first_byte_timeout: seconds an endpoint has for the first byte of a body; 0 for no limit.
        stall_timeout: seconds without a byte in a response that has begun; 0 for no limit.
        quarantine: of requests that are suspected of killing engines; one of its own when left out.
        refresh: re-reads the configuration before a request is refused for want of endpoints; True when it changed.
        token: identifies the router to BladeLLM engines; none is sent when left out.
        part_limits: of what each request's body may consist of; none when left out.
        resumer: resumes streams on other replicas; one without a token when left out.
        shows_routes: whether a request's client may see how its endpoint was chosen; others get its name and the
            policy's only.
        list_models: the response to a GET of ``/v1/models``; None where an engine is to send it.
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
        quarantine: Quarantine | None = None,
        refresh: Callable[[], bool] = lambda: False,
        admission_control: AdmissionControl | None = None,
        token: TokenHeader | None = None,
        resumer: Resumer | None = None,
        part_limits: PartLimits | None = None,
        shows_routes: Callable[[ClientRequest], bool] = lambda request: False,
        list_models: Callable[[ClientRequest], Awaitable[bytes | None]] | None = None,
    ) -> None:
        self.endpoints = endpoints
        self.policy = policy
        self.kv_index: KvIndex | None = None
        """Set while the policy is kv-aware: it learns from responses."""
        self.shadows: Shadows | None = None
        """Set while copies of requests are sent."""
        self.admission_control: AdmissionControl = admission_control or AdmitAll()
        self._token = token or TokenHeader(None)
        self._resumer = resumer or Resumer(endpoints, metrics, max_tries=max_tries)
        self._part_limits = part_limits or PartLimits()
        self._list_models = list_models
        self._shows_routes = shows_routes
        self.observers: Sequence[Observe] = ()
        self.traced_observers: Sequence[Observe] = ()
        """Notified of each request that has ended; these of one that is recorded in a trace."""
        self.recent: RecentRequests | None = None
        """Gets every request, where there is a web UI that shows them."""
        self._metrics = metrics
        self.quarantine = Quarantine() if quarantine is None else quarantine
        self._budget = RetryBudget(lambda: metrics.live)
        metrics.retries_exhausted = lambda: self._budget.exhausted
        self._max_tries = max_tries
        self._first_byte_timeout = first_byte_timeout
        self._stall_timeout = stall_timeout
        self._refresh = refresh

    async def __call__(self, raw: RawRequest, client: Client) -> None:
        started = time.perf_counter()
        metrics = self._metrics
        metrics.begin(started)
        status = CLIENT_GONE
        request: ClientRequest | None = None
        refused: Awaitable[None] | None = None
        key = code = ""
        recent = self.recent
        try:
            request = await read_request(raw)
            client.request_id = request.id
            if recent is not None:
                recent.begin(request, started)
            if wants_stream(request):
                client.expect_stream(request_ids(request), partial(error_event, request.path))
            self._part_limits.check(request)
            raw.body = b""  # beside what it is rewritten to it would take the same memory again
            if request.method == "GET" and is_models(request.path) and self._list_models is not None:
                listing = await self._list_models(request)
                if listing is not None:
                    status = 200
                    await client.start(200, [*_JSON, (b"content-length", b"%d" % len(listing))])
                    await client.finish(listing)
                    return
            admission = await self.admission_control.admit(request, client)
            key = admission.key_name
            try:
                status = await self._serve(request, client, admission)
            except Refused as refusal:
                request.status = refusal.status
                raise
            finally:
                admission.close(request.usage)
        except ClientGone:
            pass
        except Refused as refusal:
            status = refusal.status
            code = refusal.code
            metrics.refused[code] += 1
            refused = client.refuse(refusal)
        except Exception:
            status = 500
            raise
        finally:
            ended = time.perf_counter()
            if request is None:
                metrics.end(status, started, 0.0, False, "", None, None)
            else:
                fields, answered = request.fields, request.first_byte_at
                number = samples(fields)
                metrics.end(status, started, answered, request.streamed, key, fields.model, request.usage, number)
                if recent is not None:
                    recent.end(request, started, ended, status, code)
            if observers := self.traced_observers if raw.is_traced else self.observers:
                outcome = Outcome(raw, client, request, key, status, started, ended)
                for observe in observers:
                    observe(outcome)
        if refused is not None:
            await refused

    async def _serve(self, request: ClientRequest, client: Client, admission: Admission) -> int:
        """Try endpoints until one answers; returns the status the client got."""
        suspected = self.quarantine.enter(request, admission.key_name) if self.quarantine else None
        retries = RetryState(self._budget, suspected)
        try:
            return await self._try_endpoints(request, client, admission, retries)
        finally:
            if retries.trial is not None:
                retries.trial.close()
            if request.answer is not None:
                request.answer.close()

    async def _try_endpoints(
        self, request: ClientRequest, client: Client, admission: Admission, retries: RetryState
    ) -> int:
        ids = resume_headers(request)  # also where there is one endpoint: another may come before the stream ends
        about_responses = is_about_responses(request.path)
        choice = self._pick_first(request, admission, retries)
        while choice is not None or (choice := await self._pick(request, client, admission, retries)) is not None:
            endpoint = choice.endpoint
            request.added_headers = added = self._headers(request, choice, retries)
            added += admission.headers
            index = index_to_teach(kv, endpoint, request) if (kv := self.kv_index) is not None else None
            extra = self._token.lines() + NO_COMMENTS if endpoint.config.engine == "blade" else b""
            if about_responses and endpoint.config.engine == "blade":
                extra += tag_lines(endpoint, admission.key_name)
            if ids and supports_resume(endpoint):
                extra += ids
            if index is not None:
                extra += _REQUEST_BLOCKS
            answered = engine_lost = False
            compared = comparison.begin(endpoint.revision) if (comparison := self._metrics.comparison) else None
            if self.shadows is not None and compared is not None and request.attempts == 1 and retries.trial is None:
                adapter = self.policy.adapter(request)
                self.shadows.begin(compared, endpoint, request, admission.service, adapter, admission.key_name)
            with self.endpoints.attempt(choice, request, client) as attempt:
                try:
                    head = request.head_for(endpoint.authority, extra)
                    connection = await attempt.send(head, request.body, self._first_byte_timeout, self._stall_timeout)
                    response = await buffer_head(connection, compared)
                    finished: Awaitable[None] | None = None
                    whole = response.complete and response.status == 200
                    try:
                        if whole:  # it is sent at once: what follows keeps no client waiting
                            finished = send_whole(response, added, request, client)
                    finally:
                        if whole:
                            retries.succeeded(endpoint, 200)
                            request.usage = response.usage()
                            count_response(compared, response, None, request)
                        if response.status < 300:
                            admission.first_byte()
                            attempt.first_byte()
                            if index is not None:
                                index.learn(request.prompt.chain, header_of(connection.headers, _KV_BLOCKS))
                    if finished is not None:
                        attempt.end_probe()
                        await finished
                        lost = None
                        answered = True
                    elif response.status in RETRIABLE and response.complete:
                        retries.rejected(endpoint, response, added)
                        request.note_attempt(endpoint.name, request.chosen_at, retries.reason)
                        count_rejection(compared, response)
                        engine_lost = is_engine_dead(response.status, response.body)
                    elif refuses_token(endpoint, response):
                        retries.refused_token(endpoint)
                        request.note_attempt(endpoint.name, request.chosen_at, retries.reason)
                    else:
                        retries.succeeded(endpoint, response.status)
                        attempt.end_probe()
                        if response.status in REDIRECTS:
                            raise redirected(response.status, added)
                        lost = await self._relay(response, added, connection, request, client)
                        answered = True
                        count_response(compared, response, lost, request)
                except UpstreamError as error:
                    retries.failed(endpoint, error)
                    request.note_attempt(endpoint.name, request.chosen_at, error.reason)
                    count_failure(compared, error)
                    engine_lost = is_loss(error)
                    logger.debug("request %s failed on %s: %s", request.id.decode("latin-1"), endpoint.name, error)
            request.end_attempt(retries.reason if not answered else "" if lost is None else lost.reason)
            if engine_lost:
                retries.trial = retries.trial or Trial(self.quarantine, request, admission.key_name)
                await retries.trial.lost(endpoint, progressed=False)
            if not answered:
                choice = None
                continue
            trial = retries.trial
            if lost is None:
                if response.status < 500:
                    if trial is not None:
                        trial.served()
                    elif self.quarantine:
                        self.quarantine.served(request, admission.key_name)
                return response.status
            retries.trial = trial = trial or Trial(self.quarantine, request, admission.key_name)
            return await self._fail_over(lost, response, endpoint, request, client, trial)
        retries.give_up()
        if retries.last is None:
            raise unavailable(self.endpoints, retries, admission, self.policy.adapter(request))
        response, added = retries.last
        if response.status == 503 and not header_of(response.headers, b"retry-after"):
            added.append((b"retry-after", b"1"))
        await self._relay(response, added, None, request, client)
        return response.status

    def _pick_first(self, request: ClientRequest, admission: Admission, retries: RetryState) -> Choice | None:
        """Choose the first endpoint; None where that may have to wait (``_pick``)."""
        if retries.trial is not None:
            return None
        candidates, retries.panic = self.endpoints.candidates(
            (), admission.service, self.policy.adapter(request), admission.key_name
        )
        if not candidates:
            return None
        left = holders(candidates, request, self.endpoints, admission.service)
        return self._try(self._choose(left, request), request, retries)

    @staticmethod
    def _try(choice: Choice, request: ClientRequest, retries: RetryState) -> Choice:
        """Count a further try."""
        request.attempts += 1
        retries.tried.append(choice.endpoint)
        return choice

    async def _pick(
        self, request: ClientRequest, client: Client, admission: Admission, retries: RetryState
    ) -> Choice | None:
        """Wait until an endpoint may be tried, and choose one; None when no further try is allowed.

        Raises:
            Refused: it has waited too long for an endpoint, or there is no room to wait; or it is in quarantine.
            ClientGone: the client left.
        """
        while retries.attempts_charged < self._max_tries:
            candidates, retries.panic = self.endpoints.candidates(
                retries.tried, admission.service, self.policy.adapter(request), admission.key_name
            )
            if not candidates:
                if not await self._endpoint_available(request, client, admission, retries):
                    return None
            elif retries.needs_budget:
                if (retries.last is not None and has_holder(request)) or not await retries.take_retry():
                    return None
            elif retries.trial is not None and retries.trial.waits:
                await retries.trial.turn(client)
            else:
                left = holders(candidates, request, self.endpoints, admission.service)
                choice = self._choose(left, request)
                if retries.trial is not None:
                    retries.trial.sent_to(choice.endpoint)
                if retries.reason:
                    self._metrics.retries[retries.reason] += 1
                return self._try(choice, request, retries)
        return None

    def _choose(self, candidates: Sequence[Endpoint], request: ClientRequest) -> Choice:
        policy = self.policy
        return policy.choose(choosable(policy, candidates), request)

    async def _endpoint_available(
        self, request: ClientRequest, client: Client, admission: Admission, retries: RetryState
    ) -> bool:
        """There is no candidate: wait for one where that is allowed. False when there will be none."""
        if self._refresh():
            return True  # a replica became ready since the configuration was read
        admission.adapter = self.policy.adapter(request)
        if self.endpoints.misses_adapter(admission.adapter, admission.service):
            return False  # there are endpoints: one more would not help
        if retries.may_wait and await self.admission_control.wait_for_endpoint(request, client, admission):
            retries.reset()
            if retries.trial is None:  # an equal request may have lost its engine meanwhile
                retries.trial = self.quarantine.enter(request, admission.key_name)
            return True
        return retries.retry_lost_connections()

    async def _relay(
        self,
        response: BufferedResponse,
        added: Headers,
        connection: Connection | None,
        request: ClientRequest,
        client: Client,
    ) -> UpstreamError | None:
        """Send what was buffered, then stream the rest; returns why it broke off, if it did."""
        if response.complete or connection is None:
            try:
                finished = send_whole(response, added, request, client)
            finally:
                request.usage = response.usage()
            await finished
            return None
        await begin(response, added, request, client)
        await client.write(response.body)
        return await forward(connection, response.events, request, client)

    async def _fail_over(
        self,
        lost: UpstreamError,
        response: BufferedResponse,
        endpoint: Endpoint,
        request: ClientRequest,
        client: Client,
        trial: Trial,
    ) -> int:
        """Resume a stream that broke off on other replicas, as often as one is lost; else end it in an error event.

        Returns the status the request counts with.
        """
        events = response.events
        state = read_resume_state(request, response.headers, endpoint)
        relayed = 0
        while True:
            request.note_attempt(endpoint.name, time.perf_counter(), lost.reason)
            logger.warning("the response of %s broke off: %s", endpoint.name, str(lost), extra=request.log_fields)
            if events is not None and not events.split and events.over:
                endpoint.health.record_failure(str(lost), lost)
                request.usage = usage_of_stream(events.last, request.begun_usage)
                await client.finish()
                return response.status
            resumed = None
            try:
                if is_loss(lost):
                    await trial.lost(endpoint, progressed=events is None or request.events > relayed)
                else:
                    endpoint.health.record_failure(str(lost), lost)
                relayed = request.events
                if state is not None and isinstance(events, ResumableStream) and not events.split:
                    relay = partial(forward, events=events, request=request, client=client, progressed=trial.served)
                    resumed = await self._resumer.resume(state, events, endpoint, self._choose, client, relay, trial)
            except Refused as refusal:
                self._metrics.resumes["suspected"] += 1
                logger.warning("the response is not resumed: %s", refusal, extra=request.log_fields)
            else:
                if resumed is None and trial.losses == 1:
                    trial.blame()
            if resumed is None:
                if events is None or events.split:
                    return BROKEN  # It stays incomplete and the server closes the connection: the client can tell.
                await client.finish(events.broken(lost.reason))
                return BROKEN
            endpoint, again = resumed
            if again is None:
                return response.status
            lost = again

    def _headers(self, request: ClientRequest, choice: Choice, retries: RetryState) -> Headers:
        """The headers the router adds to a response: which endpoint, why that one, and the request's id.

        In full only for whom that may concern.
        """
        words = " panic" if retries.panic else ""
        if retries.reason:
            words += f" retry={retries.reason}"
        endpoint = choice.endpoint
        request.begin_attempt(endpoint.name, choice, words)
        ids = request_ids(request)
        if self._shows_routes(request):
            reason = request.route_reason.encode("ascii")
            return [*ids, (_ENDPOINT, endpoint.name_header), (_REASON, reason)]
        # How much of a prompt is cached tells of other clients' prompts, and load of how many there are.
        return [*ids, (_ENDPOINT, endpoint.public_name), (_REASON, choice.word)]
