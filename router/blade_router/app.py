"""The router as a process: the parts put together behind its server, and the program ``blade_router``."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Self

import msgspec
import uvloop

from blade_protocol import environment, paths
from blade_protocol.routing import RouterConfig
from blade_router.access_log import AccessLog
from blade_router.admission import hash_key
from blade_router.admission.admission import Admission
from blade_router.admission.key_sources import Keys, SecretKeys, WatchedKeys
from blade_router.admission.keys import Keyring
from blade_router.admission.waiting import WaitingRooms
from blade_router.arguments import Options, parse_arguments
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
from blade_router.http.listening import inherited, listen
from blade_router.http.reading import HttpLimits
from blade_router.http.server import Server
from blade_router.http.tls import Certificate
from blade_router.kubernetes import FollowedConfigMap, FollowedEndpoints, FollowedPeers
from blade_router.metrics import Metrics
from blade_router.model_list import ModelList
from blade_router.peers import CountedPeers
from blade_router.policies import PolicyOptions, make_policy
from blade_router.prefix_index import PrefixIndex
from blade_router.proxy import Proxy
from blade_router.resume import Resumer, token_file
from blade_router.shared import SharedColumns, SharedMemory
from blade_router.signals import router_signals
from blade_router.sources import Configuration, Source, WatchedFile
from blade_router.tracing import Tracer
from blade_router.worker_peers import WorkerPeers
from blade_router.workers import Supervisor, begin_child

logger = logging.getLogger("blade_router")

OF_ENGINES = frozenset(
    path.encode() for path in (paths.TOKENIZE, paths.DETOKENIZE, paths.VERSION, paths.OPENAPI, paths.DOCS)
)
"""What clients ask outside ``/v1/`` and only an engine knows. Health, liveness and metrics are the router's own."""
CLIENT_KEEP_ALIVE = 75
"""Seconds an idle client connection stays open."""
FAREWELL = 1.0
"""Seconds at the end in which an open connection may bring another request."""

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
        if request.target.startswith(b"/v1/") or request.path in OF_ENGINES:
            if self._tracer is not None:
                self._tracer.begin(request)
            return self.proxy(request, client)
        return asgi.ask(self._admin, request, client)

    def serve_with(self, server: Server) -> None:
        """The server that follows what the configuration says about it."""
        self._server = server
        server.cors = self._cors

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
            group.create_task(self._sources.follow(self.apply))
            if self.keys is not None:
                group.create_task(self.keys.follow(self._keys_changed))
            if self._peers is not None:
                group.create_task(self._peers.follow(self._set_replicas))
            if self._beliefs is not None:
                group.create_task(self._beliefs.follow())

    def _set_replicas(self, count: int) -> None:
        """So many routers split every limit, and what the engines may have."""
        self.admission.set_replicas(count)
        self.rooms.split(count * self._workers)

    def _keys_changed(self) -> None:
        if self.keys is not None and self.keys.keys is not None:
            self.admission.set_keys(self.keys.keys)

    def apply(self, config: RouterConfig) -> None:
        """Make a configuration the one in effect."""
        self.rooms.configure(config.queue, config.hold)
        before = self.endpoints.all
        new = self.endpoints.update(config.endpoints)
        self._health.watch(new)
        self.followers.watch(new)
        for endpoint in before:
            if endpoint.removed:
                self.proxy.policy.removed(endpoint)
                self.policy_options.removed(endpoint)
        if (config.policy, config.canary) != self._policy:
            self._policy = (config.policy, config.canary)
            try:
                self.proxy.policy = make_policy(config.policy, self.policy_options, config.canary)
            except ValueError as error:
                logger.error("policy %s: %s; %s stays in effect", config.policy, error, self.proxy.policy.name)
        kv_index = self._kv_index if config.policy == "kv-aware" else None
        self.followers.index = self.proxy.kv_index = kv_index
        self.admission.configure(config)
        self._cors = Cors(config.cors_origins) if config.cors_origins else None
        if self._server is not None:
            self._server.cors = self._cors
        self._models[:] = [model.name for model in config.models]


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


def make_server(router: Router, options: Options, certificate: Certificate | None = None) -> Server:
    """The server of a router; inside the event loop."""
    farewell = min(FAREWELL, options.drain_timeout / 2)
    limits = HttpLimits(
        max_body_bytes=options.max_body_bytes,
        header_timeout=options.header_timeout,
        body_timeout=options.body_timeout,
        keep_alive=CLIENT_KEEP_ALIVE,
    )
    server = Server(
        router,
        limits,
        farewell=farewell,
        drain_timeout=options.drain_timeout - farewell,
        tls=certificate.context if certificate is not None else None,
        refused=router.refused,
    )
    router.serve_with(server)
    return server


async def run(options: Options, listeners: list[socket.socket], certificate: Certificate | None = None) -> None:
    """Serve until SIGTERM or SIGINT, or until the parent of this worker is gone; then finish what is under way."""
    async with contextlib.AsyncExitStack() as stack:
        router = await stack.enter_async_context(Router(options))
        scheme = "http" if certificate is None else "https"
        for listener in listeners:
            host, port = listener.getsockname()[:2]
            logger.info("listening on %s://%s:%d/v1", scheme, f"[{host}]" if ":" in host else host, port)
        # What exists now lives as long as the process: keep the collector off it, and let it come seldom.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        server = make_server(router, options, certificate)
        stop = asyncio.Event()

        def interrupted() -> None:
            if stop.is_set():
                server.hurry()
            stop.set()

        server.loop.add_signal_handler(signal.SIGTERM, stop.set)
        server.loop.add_signal_handler(signal.SIGINT, interrupted)
        if options.place is not None:
            server.loop.add_reader(options.place.parent, stop.set)
            begin_child()
        if certificate is not None:
            following = asyncio.create_task(certificate.follow(), name="follow certificate")
            stack.callback(following.cancel)
        await server.start(listeners)
        if router.workers is not None:
            await stack.enter_async_context(router.workers)
        await stop.wait()
        if options.place is not None:
            server.loop.remove_reader(options.place.parent)
        await server.stop()
        logger.info("stopped")


def main(arguments: Sequence[str] | None = None) -> None:
    """The program ``blade_router``."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["hash-key"]:
        hash_key.main(arguments[1:])
        return
    options = parse_arguments(arguments)
    where = f"[{options.worker}] " if options.place is not None else ""
    logging.basicConfig(level=options.log_level, format=f"%(asctime)s %(levelname)s {where}%(name)s: %(message)s")
    if options.workers > 1 and options.place is None:
        sys.exit(supervise(sys.argv[1:] if arguments is None else arguments, options))
    certificate = _certificate(options)
    listeners = _listeners(options)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(options, listeners, certificate))
    except ConfigError as error:
        sys.exit(f"blade_router: {error}")
    finally:
        for listener in listeners:
            listener.close()


def supervise(arguments: Sequence[str], options: Options) -> int:
    """Be the parent of workers; the exit status."""
    try:
        supervisor = Supervisor(
            arguments,
            options.workers,
            options.host,
            options.port,
            drain_timeout=options.drain_timeout,
            pass_fds=() if options.listen_fd is None else (options.listen_fd,),
        )
    except OSError as error:
        sys.exit(_cannot_listen(options, error))
    return supervisor.run()


def _listeners(options: Options) -> list[socket.socket]:
    if options.place is not None:
        listeners = [inherited(options.place.listener)]
    else:
        try:
            listeners = [listen(options.host, options.port)]
        except OSError as error:
            sys.exit(_cannot_listen(options, error))
    if options.listen_fd is not None:
        try:
            listeners.append(inherited(options.listen_fd))
        except OSError as error:
            sys.exit(f"blade_router: ${environment.LISTEN_FD}={options.listen_fd}: {error.strerror}; unset it")
    return listeners


def _cannot_listen(options: Options, error: OSError) -> str:
    return f"blade_router: cannot listen on {options.host}:{options.port}: {error.strerror}; choose another --port"


def _certificate(options: Options) -> Certificate | None:
    if options.tls_cert is None or options.tls_key is None:
        return None
    try:
        return Certificate(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        sys.exit(f"blade_router: --tls_cert {options.tls_cert}, --tls_key {options.tls_key}: {error}")


if __name__ == "__main__":
    main()
