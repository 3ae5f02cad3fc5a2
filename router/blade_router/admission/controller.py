"""The admission controller: keys, models and limits, then the request queue.

Everything up to the queue is decided at once, so of two requests that come together one is counted before the other is
checked. What a request has reserved is given back when it ends, whatever ends it.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from blade_protocol.paths import MESSAGES
from blade_protocol.routing import Limits, RouterConfig
from blade_router.admission.interface import Admission
from blade_router.admission.keys import KEY_HEADERS, Key, Keyring
from blade_router.admission.limits import OverLimit, Quota, Quotas
from blade_router.admission.request_queue import QueuedRequest, RequestQueue
from blade_router.admission.request_queues import Borrow
from blade_router.admission.tokens import Estimate, rough_tokens
from blade_router.admission.window import slot_of
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.client import Client
from blade_router.http.errors import Refused
from blade_router.policies.adapter_split import AdapterSplit, adapter_splits
from blade_router.request.models import Catalog, Target, not_found, output_token_limit, prepare
from blade_router.request.request import ClientRequest
from blade_router.request.usage import Usage
from blade_router.workers.shared_memory import SharedMemory

EVERYBODY = "this service"
MOST_TOKENS = 1 << 40
"""Tokens of one request, at most: whatever it or an engine says, shared numbers have 8 bytes."""
ROUGH_OUTPUT = 16
"""Output tokens of a request without a limit, where a rough estimate is enough."""
ANONYMOUS = "requests without a key"


class MeteredAdmission(Admission):
    """An admitted request, and what it has reserved."""

    def __init__(
        self,
        admission: "AdmissionController",
        request: ClientRequest,
        estimate: Estimate | None,
        quotas: Sequence[Quota],
        prompt: int,
        reserved: int,
        then: int,
    ) -> None:
        self.reserved = reserved
        """Tokens it may use, prompt and output together."""
        self.queued: QueuedRequest | None = None
        """Its place among the requests in flight, once it has one."""
        self._admission = admission
        self._request = request
        self._estimate = estimate
        self._quotas = quotas
        self._prompt = prompt
        self._then = then

    def close(self, usage: Usage | None) -> None:
        try:
            if self._estimate is not None:
                self._settle(self._estimate, usage)
        finally:
            if self.queued is not None:
                self.queued.release()

    def _settle(self, estimate: Estimate, usage: Usage | None) -> None:
        """Count what was used instead of what was reserved."""
        request = self._request
        if usage is not None:
            estimate.learn(request, usage)
        if usage is not None:
            used = min(max(0, usage.prompt_tokens) + max(0, usage.completion_tokens), MOST_TOKENS)
        elif request.status >= 400 or (not request.status and not request.attempts):
            used = 0  # nobody has worked on it
        elif request.status and not request.streamed:
            used = self.reserved  # the response has no usage, and its text cannot be counted
        else:
            # No usage, or the client left: the prompt was computed, and an event is about a token.
            used = self._prompt + request.events
        slot = slot_of(time.monotonic())
        for quota in self._quotas:
            quota.settle(self.reserved, used, self._then, slot)
            if quota.retired:
                self._admission.quotas.drop(quota)

    def cancel(self) -> None:
        """Its turn never came: nothing of it counts."""
        slot = slot_of(time.monotonic())
        for quota in self._quotas:
            quota.undo(self.reserved, self._then, slot)
            if quota.retired:
                self._admission.quotas.drop(quota)


class AdmissionController:
    """Admits requests by key, model, limits and queue; an ``AdmissionControl``.

    Args:
        queue_of: the queue of a service; None: nobody waits.
        wait_for_endpoint: waits for an endpoint of the request's service; see ``AdmissionControl``.
        find_model: which service has a model that neither the configuration nor an endpoint has named; called only
            where there are several services.
    """

    def __init__(
        self,
        endpoints: EndpointSet,
        keyring: Keyring | None = None,
        memory: SharedMemory | None = None,
        *,
        queue_of: Callable[[str], RequestQueue | None] = lambda service: None,
        wait_for_endpoint: Callable[[ClientRequest, Client, Admission], Awaitable[bool]] | None = None,
        find_model: Callable[[str], Awaitable[str | None]] | None = None,
    ) -> None:
        self.keyring = keyring or Keyring()
        self.quotas = Quotas(memory)
        self.borrow: Borrow | None = None
        """Borrows shares of limits from other replicas; set by its owner where there may be some."""
        self.catalog = Catalog(endpoints)
        self.splits: dict[str, AdapterSplit] = {}
        """Model names that several adapters share."""
        self._endpoints = endpoints
        self._queue_of = queue_of
        self._wait_for_endpoint = wait_for_endpoint
        self._find_model = find_model
        self._config = RouterConfig()
        self._estimates: dict[str, Estimate] = {}
        self._quota_of: dict[str, Quota] = {}
        self._quota_chains: dict[tuple[str, str], tuple[Quota, ...]] = {}

    # configuration

    def configure(self, config: RouterConfig) -> None:
        """Take over models and limits; after the endpoints."""
        self._config = config
        self.catalog = Catalog(self._endpoints, config.models, config.adapters)
        named = {name for model in config.models for name in (model.name, *model.aliases)}  # these mean the model
        own = [adapter for adapter in config.adapters if (adapter.model or adapter.name) not in named]
        self.splits = adapter_splits(own, self._endpoints)
        names = {f" {service}" for service in self.catalog.services}
        names |= {model.name for model in config.models}
        self._estimates = {name: self._estimates.get(name) or Estimate() for name in names}
        self._limit()

    def set_keys(self, keys: Iterable[Key]) -> None:
        """Replace all keys. Requests in flight continue, and so do the limits of keys that stay."""
        self.keyring.replace(keys)
        self._limit()

    def set_replicas(self, count: int) -> None:
        """Share every limit between so many routers from now on."""
        self.quotas.split(count)

    def _limit(self) -> None:
        wanted: dict[str, Limits] = {EVERYBODY: self._config.limits}
        if not self.keyring.required:
            wanted[ANONYMOUS] = self._config.anonymous
        for model in self._config.models:
            wanted[_model_quota(model.name)] = model.limits
        for key in self.keyring.keys:
            wanted[key.quota_name] = key.limits
        self._quota_of = self.quotas.configure(wanted)
        self._quota_chains.clear()

    # admission control

    async def admit(self, request: ClientRequest, client: Client) -> Admission:
        keyring = self.keyring
        key = keyring.find(request.headers)
        request.key = key.name
        if keyring.required:
            request.withhold(KEY_HEADERS)
            if not key.allows_path(request.path):
                message = f"this API key may not use {request.path}"
                raise Refused(403, message, code="path_not_allowed", kind="permission_error")
        target = self._target(request, key)
        if target is None:
            target = await self._resolve(request, key)
        self._prepare(request, key, target)
        queue = self._queue_of(target.service)
        queued = queue is not None and queue.enabled
        while True:
            try:
                admission = self._take(request, key, target, estimated=queued)
                break
            except OverLimit as refusal:
                over = refusal
            if not over.lacks or self.borrow is None or not await self.borrow(over.quota, over.lacks):
                over.__traceback__ = None
                raise over
        if queue is None or not queued:
            return admission
        fields = request.fields
        own = fields.priority or 0
        try:
            admission.queued = queued_request = queue.enter(
                key.name,
                key.weight,
                own if key.priority is None else max(own, key.priority),
                len(request.body),
                admission.reserved,
                bool(fields.stream),
            )
            if queued_request.waits:
                request.queued_at = time.perf_counter()
                await queue.wait(queued_request, client)
        except BaseException:
            admission.cancel()
            raise
        return admission

    def dry_run(self, request: ClientRequest, key_name: str) -> str:
        """Make of a request what ``admit`` makes of one of that key, and count nothing; returns its service.

        Raises:
            Refused: 404, there is no such key or model; or what the model or the key does not allow.
        """
        key = self.keyring.named(key_name)
        if key is None:
            raise Refused(404, f"there is no API key of the name {key_name!r}", code="key_not_found")
        target = self._target(request, key)
        if target is None:
            raise not_found(request.fields.model or "")
        self._prepare(request, key, target, counted=False)
        return target.service

    async def wait_for_endpoint(self, request: ClientRequest, client: Client, admission: Admission) -> bool:
        if not request.queued_at:
            request.queued_at = time.perf_counter()
        return self._wait_for_endpoint is not None and await self._wait_for_endpoint(request, client, admission)

    def _prepare(self, request: ClientRequest, key: Key, target: Target, *, counted: bool = True) -> None:
        """Apply what its key and model have for a request. ``counted``: where it goes counts for the next ones.

        Raises:
            Refused: the engines do not have the path, or the model or the key does not allow it.
        """
        self.catalog.check_route(request.path, target.service)
        ordered = key.priority is not None and key.priority > 0 and self.catalog.orders(target.service)
        salt = key.cache_salt if self.keyring.required and not self._config.share_prefix_cache else ""
        split = self.splits.get(request.fields.model or "") if self.splits else None
        adapter = "" if split is None else split.choose(request, counted=counted)
        salted = bool(salt) and request.path == MESSAGES and self.catalog.orders(target.service)
        prepare(request, target, key.priority, ordered=ordered, salt=salt, salts_messages=salted, adapter=adapter)

    def _target(self, request: ClientRequest, key: Key) -> Target | None:
        """The target of the request; None when engines have to be queried.

        Raises:
            Refused: 404, the key may not use the model; 400, the request names none.
        """
        name = request.fields.model
        catalog = self.catalog
        target = catalog.find(name)
        if not name:
            if key.models is not None and request.method == "POST":
                raise Refused(400, "you must provide a model parameter", code="missing_model")
            return target or catalog.nameless(request)
        if key.models is not None and not key.allows(*(target.names(name) if target is not None else (name,))):
            raise not_found(name)
        return target

    async def _resolve(self, request: ClientRequest, key: Key) -> Target:
        """Query the engines for a model that nothing here lists.

        Raises:
            Refused: 404, there is none of this name.
        """
        name = request.fields.model or ""
        service = await self._find_model(name) if self._find_model is not None else None
        if service is None:
            raise not_found(name)
        return Target(service)

    def _take(self, request: ClientRequest, key: Key, target: Target, *, estimated: bool) -> MeteredAdmission:
        """Count the request, if there is room for it everywhere.

        Args:
            estimated: the queue needs a rough number of its tokens.

        Raises:
            Refused: 429, with the limit that has no room and when it has.
        """
        quotas: tuple[Quota, ...] = ()
        estimate: Estimate | None = None
        prompt = tokens = slot = 0
        if request.method == "POST":
            if self._quota_of:
                model = target.model.name if target.model is not None else ""
                # Models that are not listed learn together: clients must not make the router remember names.
                estimate = self._estimates.get(model or f" {target.service}") or Estimate()
                prompt = estimate.prompt(request)
                tokens = min(prompt + estimate.output(request), MOST_TOKENS)
                quotas = self._quotas(key, model)
                now = time.monotonic()
                slot = slot_of(now)
                for quota in quotas:
                    if not quota.admits(tokens, slot):
                        raise quota.refusal(tokens, now)
                for quota in quotas:
                    quota.take(tokens, slot)
            elif estimated:  # only the queue uses it: a rough number will do
                tokens = rough_tokens(request) + output_token_limit(request.fields, ROUGH_OUTPUT)
                tokens = min(tokens, MOST_TOKENS)
        admission = MeteredAdmission(self, request, estimate, quotas, prompt, tokens, slot)
        admission.service, admission.key_name = target.service, key.name
        if quotas:
            # Those of the key come first: they are what its owner knows and can act on.
            admission.headers = quotas[0].headers(slot)
        return admission

    def _quotas(self, key: Key, model: str) -> tuple[Quota, ...]:
        """The quotas of a request: those of its key, of its model, and of everybody."""
        found = self._quota_chains.get((key.name, model))
        if found is None:
            names = (key.quota_name if self.keyring.required else ANONYMOUS, _model_quota(model), EVERYBODY)
            found = tuple(self._quota_of[name] for name in names if name in self._quota_of)
            self._quota_chains[key.name, model] = found
        return found


def _model_quota(name: str) -> str:
    return f"model {name}"
