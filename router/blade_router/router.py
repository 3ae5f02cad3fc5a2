"""The router's parts put together: which one serves a request, what is watched in the background, and what a change of
the configuration means to each part."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, Self

import msgspec

from blade_protocol import paths
from blade_protocol.routing import RouterConfig, ShadowConfig
from blade_router.admin.lending import ReplicaLending
from blade_router.admin.replica_sync import ReplicaSync
from blade_router.admin.sibling_workers import SiblingWorkers
from blade_router.admission.controller import AdmissionController
from blade_router.admission.keys import ANONYMOUS, ANONYMOUS_OF_ANY_PRIORITY, Keyring
from blade_router.admission.request_queues import RequestQueues
from blade_router.arguments import Options
from blade_router.config.internal_token import has_token, token_file
from blade_router.config.parsing import ConfigError
from blade_router.config.sources import RETRY_SECONDS
from blade_router.config.token_header import shared as shared_token
from blade_router.endpoints import shared_quarantine
from blade_router.endpoints.endpoint_set import ADAPTER_SECONDS, EndpointSet
from blade_router.endpoints.health_check import HealthChecker
from blade_router.endpoints.quarantine import Quarantine
from blade_router.endpoints.shared_health import WIDTH, SharedHealth
from blade_router.endpoints.shared_quarantine import SharedQuarantine
from blade_router.engines import EngineWatchers, KvIndex
from blade_router.http import asgi
from blade_router.http.client import Client
from blade_router.http.cors import Cors
from blade_router.http.errors import Refused
from blade_router.http.head import RawRequest
from blade_router.http.server import Server
from blade_router.http.traced import join_trace
from blade_router.observability.access_log import AccessLog
from blade_router.observability.metrics import Metrics
from blade_router.observability.server_load import ServerLoad
from blade_router.observability.signals import router_signals
from blade_router.observability.tracing import open_tracer
from blade_router.policies import PolicyOptions, make_policy
from blade_router.policies.prefix_cache.prefix_index import PrefixIndex
from blade_router.policies.replica_sync.siblings import Siblings
from blade_router.policies.sync_log import SyncLog
from blade_router.proxy.model_list import ModelList
from blade_router.proxy.proxy import Proxy
from blade_router.proxy.shadow import Shadows
from blade_router.request.part_limits import PartLimits
from blade_router.resume import Resumer
from blade_router.source_factories import make_keys, make_replica_source, make_sources
from blade_router.statistics.revisions import Comparison
from blade_router.statistics.shadow import ShadowCounts
from blade_router.ui.factory import make_web_ui
from blade_router.workers.shared_memory import SharedColumns, SharedMemory

logger = logging.getLogger("blade_router.router")

ENGINE_PATHS = frozenset(
    path.encode()
    for path in (
        *(paths.TOKENIZE, paths.DETOKENIZE, paths.TOKENIZER_INFO, paths.VERSION, paths.OPENAPI, paths.DOCS),
        *(paths.SCORE_BARE, paths.RERANK_BARE, paths.RERANK_V2),
    )
)
"""Paths outside ``/v1/`` that engines serve."""
PUBLIC_PAGES = frozenset((paths.HEALTH.encode(), paths.PING.encode(), paths.LIVE.encode()))
"""The router's own pages on its public port; the rest, which shows its inside, is on the admin port only."""
MAX_SHARED_ENDPOINTS = 512
"""Endpoints whose health the workers share; with more, each checks the rest by itself."""


class Router:
    """Serves requests, and does the background work that needs: use it as an async context manager.

    Requests for engines (``/v1/*`` and ``ENGINE_PATHS``) go straight to the data path, ``PUBLIC_PAGES`` and all of
    the admin port to the admin application.

    Raises:
        ConfigError: from the constructor, when the configuration file is missing or not valid, or the policy cannot
            be made.
    """

    def __init__(self, options: Options) -> None:
        self._sources = make_sources(options)
        config = self._sources.start()
        self.endpoints = EndpointSet(connect_timeout=options.connect_timeout, slow_start=options.slow_start)
        memory = SharedMemory(options.shared, options.worker, options.workers)
        self.request_queues = RequestQueues(self.endpoints, memory)
        self.metrics = Metrics(self.endpoints, self.request_queues)
        self.keys = make_keys(options)
        self.admission = AdmissionController(
            self.endpoints,
            Keyring(
                required=self.keys is not None,
                anonymous=ANONYMOUS_OF_ANY_PRIORITY if options.allow_client_priority else ANONYMOUS,
            ),
            memory,
            queue_of=self.request_queues.queue,
            wait_for_endpoint=self.request_queues.wait_for_endpoint,
            find_model=lambda name: model_list.find(name),
        )
        self._token = token = shared_token(token_file())
        model_list = ModelList(self.admission, self.endpoints, token)
        self._replicas = options.replicas
        self._split_limits(options.replicas)
        quarantine = Quarantine(confinement=self.endpoints.confinement)
        self._shared_health: SharedHealth | None = None
        self._shared_quarantine: SharedQuarantine | None = None
        if options.workers > 1:
            convictions = SharedColumns(memory, "quarantine", 1, shared_quarantine.WIDTH)
            self._shared_quarantine = SharedQuarantine(quarantine, convictions.open("convictions"))
            self._shared_health = SharedHealth(
                self.endpoints, SharedColumns(memory, "endpoints", MAX_SHARED_ENDPOINTS, WIDTH).open
            )
        self._replica_source = make_replica_source(options)
        self.prefixes = PrefixIndex(options.prefix_index_bytes)
        self._kv_index = KvIndex(self.prefixes, options.kv_index_bytes)
        self._sync: ReplicaSync | None = None
        has_peers = self._replica_source is not None or isinstance(options.peers, tuple)
        if options.replica_sync and (has_peers or options.place is not None):
            siblings = Siblings(SyncLog(), lambda: self.endpoints.all, time.monotonic)
            self._sync = ReplicaSync(siblings, token, options.place)
            self.metrics.replica_sync = self._sync.counts
        self.policy_options = PolicyOptions(
            index=self.prefixes,
            exact=self._kv_index,
            cost=options.cost,
            state_interval=options.health_interval,
            replicas=lambda: self._replicas * options.workers,
            siblings=self._sync.siblings if self._sync is not None else None,
        )
        try:
            policy = make_policy(config.policy, self.policy_options, config.canary)
        except ValueError as error:
            raise ConfigError(f"policy {config.policy}: {error}") from None
        self.proxy = Proxy(
            self.endpoints,
            policy,
            self.metrics,
            max_tries=options.max_tries,
            first_byte_timeout=options.first_byte_timeout,
            stall_timeout=options.stall_timeout,
            quarantine=quarantine,
            refresh=lambda: self._sources.refresh(self.apply),
            admission_control=self.admission,
            list_models=model_list.respond,
            token=token,
            shows_routes=lambda request: (
                options.debug_routes
                or (bool(request.internal_token) and has_token(token_file(), request.internal_token))
            ),
            part_limits=PartLimits(options.max_images, options.max_part_bytes),
            resumer=Resumer(
                self.endpoints,
                self.metrics,
                token,
                connect_timeout=options.connect_timeout,
                max_tries=options.max_tries,
                first_byte_timeout=options.first_byte_timeout,
                stall_timeout=options.stall_timeout,
            ),
        )
        self._timeouts = options.first_byte_timeout, options.stall_timeout
        self._policy = (config.policy, config.canary)
        self._weights: dict[str, float] = {}
        """Those whose revisions are compared."""
        self._models: list[str] = []
        self.workers: SiblingWorkers | None = None
        if options.place is not None:
            self.workers = SiblingWorkers(
                options.place, self.metrics.render, lambda: self.metrics.in_flight, self._signals
            )
        self._lending: ReplicaLending | None = None
        if has_peers:
            shared = (self.admission.quotas, self.request_queues)
            self._lending = ReplicaLending(shared, token, self.workers, options.worker)
            self.admission.borrow = self.request_queues.borrow = self._lending.borrow
        if isinstance(options.peers, tuple):
            self._set_replicas(options.peers)
        self._ui = make_web_ui(
            options,
            self.proxy,
            self.metrics,
            self.admission,
            self.workers,
            replicas=lambda: self._replicas,
            is_draining=lambda: self._server is not None and self._server.draining,
        )
        from blade_router.admin.admin import make_admin  # FastAPI: 20 MB that the parent of workers does without

        self._admin = make_admin(
            self.proxy,
            self.metrics,
            self._models,
            self._live,
            self.workers,
            debug_routes=options.debug_routes,
            quotas=self._lending.reply if self._lending is not None else None,
            as_key=self.admission.dry_run,
            sync=self._sync if has_peers else None,
            service_report=self._ui.take_report if self._ui is not None else None,
        )
        self.engine_watchers = EngineWatchers(cleared=self.prefixes.removed, token=token)
        self._health = HealthChecker(options.health_interval, on_up=self.engine_watchers.wake)
        self._access_log: AccessLog | None = None
        if options.access_log is not None:
            self._access_log = AccessLog(options.access_log, options.trusted_proxies)
            self.proxy.observers = [self._access_log.record]
        self._tracer = open_tracer(options.otlp_endpoint, options.trace_sampling, options.trusted_proxies, self.metrics)
        if self._tracer is not None:
            self.proxy.traced_observers = [*self.proxy.observers, self._tracer.record]
        self._sampler = self._tracer.sampler if self._tracer is not None else None
        self.first = config
        self._cors: Cors | None = None
        self._server: Server | None = None
        self._watch_task: asyncio.Task[None] | None = None

    def __call__(self, request: RawRequest, client: Client) -> Awaitable[None]:
        """Serve one request of the public port."""
        if self._cors is not None and self._cors.is_preflight(request):
            return self._cors.respond_to_preflight(request, client)
        if self._is_for_engines(request):
            join_trace(request, client, self._sampler)
            return self.proxy(request, client)
        if self._ui is not None and (serve := self._ui.handler(request)) is not None:
            return serve(request, client)
        if request.path in PUBLIC_PAGES:
            return asgi.serve(self._admin, request, client)
        return client.refuse(_not_public(request))

    def serve_admin(self, request: RawRequest, client: Client) -> Awaitable[None]:
        """Serve one request of the admin port."""
        return asgi.serve(self._admin, request, client)

    def check_head(self, request: RawRequest) -> str:
        """Refuse a client without a key before it fills the memory with a body; returns the name of its key.

        Raises:
            Refused: 401, as for the request itself.
        """
        if self.keys is None or not self._is_for_engines(request):
            return ""
        return self.admission.keyring.find(request.headers).name

    def serve_with(self, server: Server) -> None:
        """Set the server to which CORS rules of the configuration apply, and whose load the metrics show."""
        self._server = server
        self.metrics.server_load = lambda: ServerLoad(
            len(server.connections), server.table.evicted, server.limits.budget.used
        )
        server.cors = self._cors

    @staticmethod
    def _is_for_engines(request: RawRequest) -> bool:
        return request.target.startswith(b"/v1/") or request.path in ENGINE_PATHS

    def _live(self) -> dict[str, bool]:
        """Whether each watched source can be read at the moment, by flag."""
        found = self._sources.live()
        if self.keys is not None:
            found |= self.keys.live()
        if self._replica_source is not None:
            found["peers"] = self._replica_source.live
        return found

    def _signals(self) -> bytes:
        return msgspec.json.encode(router_signals(self.metrics))

    def refused(self, refusal: Refused) -> None:
        """Count what was no valid request."""
        self.metrics.malformed(refusal.status, refusal.code)

    async def __aenter__(self) -> Self:
        self.apply(self.first)
        self._keys_changed()
        self._watch_task = asyncio.create_task(self._watch(), name="watch configuration")
        await self._sources.wait_for_sync()
        if self.keys is not None:
            await self.keys.settled()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._watch_task is not None:
            self._watch_task.cancel()
            await asyncio.gather(self._watch_task, return_exceptions=True)
        if (shadows := self.proxy.shadows) is not None:
            await asyncio.gather(*shadows.stop(), return_exceptions=True)
        await self._health.close()
        await self.engine_watchers.close()
        self.endpoints.update(())
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        if self._access_log is not None:
            await self._access_log.close()

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_restarted("the configuration", lambda: self._sources.watch(self.apply)))
            if (keys := self.keys) is not None:
                group.create_task(_restarted("the keys", lambda: keys.follow(self._keys_changed)))
            if (replicas := self._replica_source) is not None:
                group.create_task(_restarted("the router replicas", lambda: replicas.watch(self._set_replicas)))
            if self._lending is not None and (exchange := self._lending.exchange) is not None:
                group.create_task(_restarted("the shares of limits", exchange.follow))
            if self._ui is not None:
                group.create_task(_restarted("the web UI's samples", self._ui.follow))
            if self._sync is not None:
                group.create_task(_restarted("the sync of replicas", self._sync.follow))
            if self._shared_health is not None:
                group.create_task(_restarted("the other workers", self._shared_health.follow))
            if self._shared_quarantine is not None:
                group.create_task(_restarted("the other workers' quarantine", self._shared_quarantine.follow))

    def _set_replicas(self, urls: Sequence[str]) -> None:
        """Share every limit with the replicas that have these URLs; this one may not be among them yet."""
        if self._lending is not None:
            self._lending.set_members(urls)
        if self._sync is not None:
            self._sync.set_members(urls)
        self._split_limits(max(1, len(urls)))

    def _split_limits(self, count: int) -> None:
        """Split every limit and the capacity of the engines between so many routers."""
        self._replicas = count
        self.admission.set_replicas(count)
        self.request_queues.split(count)

    def _keys_changed(self) -> None:
        if self.keys is not None and self.keys.keys is not None:
            self.admission.set_keys(self.keys.keys)
            self.request_queues.set_keys(len(self.keys.keys))
            self.metrics.accounts.set_keys({key.name for key in self.keys.keys})

    def apply(self, config: RouterConfig) -> None:
        """Make a configuration the one in effect."""
        if (config.policy, config.canary) != self._policy:  # first: it may fail, and then nothing is half applied
            try:
                self.proxy.policy = make_policy(config.policy, self.policy_options, config.canary)
            except ValueError as error:
                logger.error("policy %s: %s; %s stays in effect", config.policy, error, self.proxy.policy.name)
            self._policy = (config.policy, config.canary)
        if config.canary != self._weights:
            self._weights = config.canary
            before, now = self.metrics.comparison, time.perf_counter()
            self.metrics.comparison = Comparison(config.canary, now, before) if config.canary else None
        self._apply_shadow(config.shadow)
        self.request_queues.configure(config.queue, config.hold)
        self.endpoints.weightless = frozenset(name for name, weight in config.canary.items() if weight <= 0)
        self.endpoints.adapter_seconds = ADAPTER_SECONDS if config.hold.wakes else 0.0
        known = self.endpoints.all
        new = self.endpoints.update(config.endpoints)
        models = {model.name for model in config.models}  # such a name means the model
        self.endpoints.declared_adapters = frozenset(adapter.name for adapter in config.adapters) - models
        self._health.watch(new)
        self.engine_watchers.watch(new)
        for endpoint in known:
            if endpoint.removed:
                self.proxy.policy.removed(endpoint)
                self.policy_options.removed(endpoint)
        kv_index = self._kv_index if config.policy == "kv-aware" else None
        self.engine_watchers.index = self.proxy.kv_index = kv_index
        self.admission.configure(config)
        self._cors = Cors(config.cors_origins) if config.cors_origins else None
        if self._server is not None:
            self._server.cors = self._cors
        self._models[:] = [model.name for model in config.models]
        self.metrics.configured_models = frozenset(self._models) | self.endpoints.declared_adapters

    def _apply_shadow(self, config: ShadowConfig | None) -> None:
        """Send copies of requests, or none any more. With another share counting goes on: pairs are of one time."""
        shadows = self.proxy.shadows
        if shadows is not None and (config is None or config.revision != shadows.revision):
            shadows.stop()
            shadows = None
        if config is not None:
            if shadows is None:
                shadows = Shadows(
                    ShadowCounts(config.revision, self.metrics.shadow_totals),
                    self.endpoints,
                    self._token,
                    first_byte_timeout=self._timeouts[0],
                    stall_timeout=self._timeouts[1],
                )
            shadows.share = config.share
        self.proxy.shadows = shadows
        self.metrics.shadow = shadows.counts if shadows is not None else None


def _not_public(request: RawRequest) -> Refused:
    what = f"{request.method.decode('ascii')} {request.path.decode('ascii')}"
    message = f"{what}: Not Found; the OpenAI API is under /v1/, the router's own pages are on its admin port"
    return Refused(404, message, code="not_found")


async def _restarted(what: str, follow: Callable[[], Awaitable[object]]) -> NoReturn:
    """Watch for ever: what fails is restarted, and stops no other watch."""
    while True:
        try:
            await follow()
        except Exception:  # whatever it is, a router must not cease to watch
            logger.exception("watching %s failed; it is restarted", what)
        await asyncio.sleep(RETRY_SECONDS)
