"""The router's parts put together: who answers a request, what is followed in the background, and what a change of the
configuration means to each part."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn, Self

import msgspec

from blade_protocol import paths
from blade_protocol.routing import RouterConfig
from blade_router.access_log import AccessLog
from blade_router.admission.admission import Admission
from blade_router.admission.key_sources import Keys, SecretKeys, WatchedKeys
from blade_router.admission.keys import Keyring
from blade_router.admission.waiting import WaitingRooms
from blade_router.arguments import Options
from blade_router.beliefs import WIDTH, SharedBeliefs
from blade_router.client import Client
from blade_router.config import ConfigError
from blade_router.endpoints import EndpointSet
from blade_router.engines import Followers, KvIndex
from blade_router.errors import Refused
from blade_router.health import HealthChecker
from blade_router.http import asgi
from blade_router.http.cors import Cors
from blade_router.http.head import RawRequest
from blade_router.http.server import Server
from blade_router.internal_token import token_file
from blade_router.kubernetes import FollowedConfigMap, FollowedEndpoints, FollowedPeers
from blade_router.metrics import Metrics
from blade_router.model_list import ModelList
from blade_router.peers import CountedPeers
from blade_router.policies import PolicyOptions, make_policy
from blade_router.prefix_index import PrefixIndex
from blade_router.proxy import Proxy
from blade_router.resume import Resumer
from blade_router.shared import SharedColumns, SharedMemory
from blade_router.signals import router_signals
from blade_router.sources import AGAIN_SECONDS, Configuration, Source, WatchedFile
from blade_router.tracing import Tracer
from blade_router.worker_peers import WorkerPeers

logger = logging.getLogger("blade_router.router")

OF_ENGINES = frozenset(
    path.encode() for path in (paths.TOKENIZE, paths.DETOKENIZE, paths.VERSION, paths.OPENAPI, paths.DOCS)
)
"""What clients ask outside ``/v1/`` and only an engine knows. Health, liveness and metrics are the router's own."""
MOST_SHARED = 512
"""Endpoints the workers tell each other news about; with more, each finds out by itself about the rest."""


class Router:
    """Answers requests, and does the background work that needs: use it as an async context manager.

    What engines answer (``/v1/*`` and ``OF_ENGINES``) goes straight to the data path, the rest to the admin
    application.

    Raises:
        ConfigError: from the constructor, when the configuration file is missing or not valid, or the policy cannot
            be made.
    """

    def __init__(self, options: Options) -> None:
        self._sources = make_sources(options)
        config = self._sources.start()
        self.endpoints = EndpointSet(connect_timeout=options.connect_timeout, slow_start=options.slow_start)
        self.rooms = WaitingRooms(self.endpoints)
        self.metrics = Metrics(self.endpoints, self.rooms)
        self.keys = make_keys(options)
        memory = SharedMemory(options.shared, options.worker, options.workers)
        self.admission = Admission(
            self.endpoints,
            Keyring(required=self.keys is not None),
            memory,
            queue_of=self.rooms.queue,
            waiting=self.rooms.hold,
            find_model=lambda name: model_list.find(name),
        )
        model_list = ModelList(self.admission, self.endpoints)
        self._workers = options.workers
        self._replicas = options.replicas
        self._set_replicas(options.replicas)
        self._beliefs: SharedBeliefs | None = None
        if options.workers > 1:
            self._beliefs = SharedBeliefs(self.endpoints, SharedColumns(memory, "endpoints", MOST_SHARED, WIDTH).open)
        self._peers = make_peers(options)
        self.prefixes = PrefixIndex(options.prefix_index_bytes)
        self._kv_index = KvIndex(self.prefixes, options.kv_index_bytes)
        self.policy_options = PolicyOptions(
            index=self.prefixes,
            exact=self._kv_index,
            cost=options.cost,
            state_interval=options.health_interval,
            replicas=lambda: self._replicas * options.workers,
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
            look_again=lambda: self._sources.refresh(self.apply),
            gate=self.admission,
            list_models=model_list.answer,
            resumer=Resumer(
                self.endpoints,
                self.metrics,
                token_file(),
                connect_timeout=options.connect_timeout,
                max_tries=options.max_tries,
                first_byte_timeout=options.first_byte_timeout,
                stall_timeout=options.stall_timeout,
            ),
        )
        self._policy = (config.policy, config.canary)
        self._models: list[str] = []
        self.workers: WorkerPeers | None = None
        if options.place is not None:
            self.workers = WorkerPeers(
                options.place, self.metrics.render, lambda: self.metrics.in_flight, self._signals
            )
        from blade_router.admin import make_admin  # FastAPI: 20 MB that the parent of workers does without

        self._admin = make_admin(
            self.proxy,
            self.metrics,
            self._models,
            self._live,
            self.workers,
            debug_routes=options.debug_routes,
        )
        self.followers = Followers(cleared=self.prefixes.removed)
        self._health = HealthChecker(options.health_interval, on_up=self.followers.nudge)
        self._access_log = AccessLog(options.access_log) if options.access_log is not None else None
        self._tracer = Tracer(options.otlp_endpoint) if options.otlp_endpoint is not None else None
        self.proxy.observers = [each.record for each in (self._access_log, self._tracer) if each is not None]
        self.first = config
        self._cors: Cors | None = None
        self._server: Server | None = None
        self._following: asyncio.Task[None] | None = None

    def __call__(self, request: RawRequest, client: Client) -> Awaitable[None]:
        """Answer one request."""
        if self._cors is not None and self._cors.is_preflight(request):
            return self._cors.answer_preflight(request, client)
        if self._is_of_engines(request):
            if self._tracer is not None:
                self._tracer.begin(request)
            return self.proxy(request, client)
        return asgi.ask(self._admin, request, client)

    def check_head(self, request: RawRequest) -> None:
        """Who has no key shall not fill the memory first.

        Raises:
            Refused: 401, as for the request itself.
        """
        if self.keys is not None and self._is_of_engines(request):
            self.admission.keyring.find(request.headers)

    def serve_with(self, server: Server) -> None:
        """The server that follows what the configuration says about it."""
        self._server = server
        server.cors = self._cors

    @staticmethod
    def _is_of_engines(request: RawRequest) -> bool:
        return request.target.startswith(b"/v1/") or request.path in OF_ENGINES

    def _live(self) -> dict[str, bool]:
        """Whether what this router follows can be read at the moment, by flag."""
        found = self._sources.live()
        if self.keys is not None:
            found |= self.keys.live()
        if self._peers is not None:
            found["peers"] = self._peers.live
        return found

    def _signals(self) -> bytes:
        return msgspec.json.encode(router_signals(self.metrics))

    def refused(self, refusal: Refused) -> None:
        """Count a request that was none."""
        self.metrics.spoiled(refusal.status, refusal.code)

    async def __aenter__(self) -> Self:
        self.apply(self.first)
        self._keys_changed()
        self._following = asyncio.create_task(self._follow(), name="follow configuration")
        await self._sources.settled()
        if self.keys is not None:
            await self.keys.settled()
        if self._tracer is not None:
            await self._tracer.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._health.close()
        await self.followers.close()
        self.endpoints.update(())
        if self._tracer is not None:
            await self._tracer.__aexit__()
        if self._access_log is not None:
            await self._access_log.close()

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_kept_up("the configuration", lambda: self._sources.follow(self.apply)))
            if (keys := self.keys) is not None:
                group.create_task(_kept_up("the keys", lambda: keys.follow(self._keys_changed)))
            if (peers := self._peers) is not None:
                group.create_task(_kept_up("the peers", lambda: peers.follow(self._set_replicas)))
            if self._beliefs is not None:
                group.create_task(_kept_up("the other workers", self._beliefs.follow))

    def _set_replicas(self, count: int) -> None:
        """So many routers split every limit, and what the engines may have."""
        self._replicas = count
        self.admission.set_replicas(count)
        self.rooms.split(count * self._workers)

    def _keys_changed(self) -> None:
        if self.keys is not None and self.keys.keys is not None:
            self.admission.set_keys(self.keys.keys)

    def apply(self, config: RouterConfig) -> None:
        """Make a configuration the one in effect."""
        if (config.policy, config.canary) != self._policy:  # first: it may fail, and then nothing is half applied
            try:
                self.proxy.policy = make_policy(config.policy, self.policy_options, config.canary)
            except ValueError as error:
                logger.error("policy %s: %s; %s stays in effect", config.policy, error, self.proxy.policy.name)
            self._policy = (config.policy, config.canary)
        self.rooms.configure(config.queue, config.hold)
        before = self.endpoints.all
        new = self.endpoints.update(config.endpoints)
        self._health.watch(new)
        self.followers.watch(new)
        for endpoint in before:
            if endpoint.removed:
                self.proxy.policy.removed(endpoint)
                self.policy_options.removed(endpoint)
        kv_index = self._kv_index if config.policy == "kv-aware" else None
        self.followers.index = self.proxy.kv_index = kv_index
        self.admission.configure(config)
        self._cors = Cors(config.cors_origins) if config.cors_origins else None
        if self._server is not None:
            self._server.cors = self._cors
        self._models[:] = [model.name for model in config.models]
        self.metrics.configured_models = frozenset(self._models)


async def _kept_up(what: str, follow: Callable[[], Awaitable[object]]) -> NoReturn:
    """Follow for ever: what fails is begun again, and takes no other with it."""
    while True:
        try:
            await follow()
        except Exception:  # whatever it is, a router must not cease to follow
            logger.exception("following %s failed; it is begun again", what)
        await asyncio.sleep(AGAIN_SECONDS)


def make_sources(options: Options) -> Configuration:
    """What the command line says to follow.

    Raises:
        ConfigError: the API is to be followed, and this pod has no ServiceAccount.
    """
    cluster = options.cluster

    def followed(service: Path | str) -> Source:
        if isinstance(service, Path):
            return WatchedFile(service)
        if cluster is None:
            raise ConfigError(f"service {service}: there is no cluster to find it in")
        return FollowedEndpoints(cluster, service)

    return Configuration(
        options.endpoints,
        config=WatchedFile(options.config) if options.config else None,
        config_map=FollowedConfigMap(cluster, options.config_map) if cluster and options.config_map else None,
        service=followed(options.service) if options.service is not None else None,
        services={each.stem if isinstance(each, Path) else each: followed(each) for each in options.services},
        policy=options.policy,
    )


def make_peers(options: Options) -> CountedPeers | FollowedPeers | None:
    """Who counts the routers that share limits; None: the command line said how many there are."""
    if isinstance(options.peers, Path):
        return CountedPeers(options.peers)
    return FollowedPeers(options.cluster, options.peers) if options.cluster and options.peers else None


def make_keys(options: Options) -> Keys | None:
    """The API keys the command line says to follow; None: everybody may ask.

    Raises:
        ConfigError: the file is missing or not valid, and there is no Secret that would say the same: a person must
            see that now.
    """
    path = WatchedKeys(options.keys) if options.keys is not None else None
    secret = SecretKeys(options.cluster, options.keys_secret) if options.cluster and options.keys_secret else None
    if path is not None:
        try:
            path.load()
        except ConfigError as error:
            if secret is None:
                raise
            logger.error("%s; the Secret's keys are waited for", error)
    return Keys(path, secret) if path is not None or secret is not None else None
