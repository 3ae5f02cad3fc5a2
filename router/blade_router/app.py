"""The router as a process: the parts put together behind uvicorn, and the program ``blade_router``."""

import asyncio
import errno
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Awaitable, MutableMapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Self

import uvicorn
import uvloop

from blade_protocol import environment, paths
from blade_protocol.routing import RouterConfig
from blade_router.admin import make_admin
from blade_router.arguments import Options, parse_arguments
from blade_router.client import Send
from blade_router.config import ConfigError
from blade_router.endpoints import EndpointSet
from blade_router.engines import Followers, KvIndex
from blade_router.health import HealthChecker
from blade_router.kubernetes import FollowedConfigMap, FollowedEndpoints
from blade_router.metrics import Metrics
from blade_router.policies import PolicyOptions, make_policy
from blade_router.prefix_index import PrefixIndex
from blade_router.protocol import LimitedProtocol
from blade_router.proxy import Proxy
from blade_router.request import Receive, Scope
from blade_router.sources import Configuration, Source, WatchedFile

logger = logging.getLogger("blade_router")

OF_ENGINES = frozenset((paths.TOKENIZE, paths.DETOKENIZE, paths.VERSION, paths.OPENAPI, paths.DOCS))
"""What clients ask outside ``/v1/`` and only an engine knows. Health, liveness and metrics are the router's own."""
CLIENT_KEEP_ALIVE = 75
"""Seconds an idle client connection stays open."""
FAREWELL = 1.0
"""Seconds at the end in which an open connection may bring another request."""
ACCEPT_ROUNDS = 3
"""Turns of the event loop before the sockets close: each accepts what has queued up, which would else be reset."""


class Router:
    """The ASGI application, and the background work it needs: use it as an async context manager.

    What engines answer (``/v1/*`` and ``OF_ENGINES``) goes straight to the data path, the rest to the admin
    application.

    Raises:
        ConfigError: from the constructor, when the configuration file is missing or not valid, or the policy cannot
            be made.
    """

    def __init__(self, options: Options) -> None:
        self._sources = make_sources(options)
        config = self._sources.start()
        self.endpoints = EndpointSet(connect_timeout=options.connect_timeout)
        self.metrics = Metrics(self.endpoints)
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
            max_body_bytes=options.max_body_bytes,
            max_tries=options.max_tries,
            first_byte_timeout=options.first_byte_timeout,
            look_again=lambda: self._sources.refresh(self.apply),
        )
        self.leaving = False
        """The process is about to end: every answer is the last one of its connection."""
        self._policy = (config.policy, config.canary)
        self._models: list[str] = []
        self._admin = make_admin(
            self.proxy, self.metrics, self._models, self._sources.live, debug_routes=options.debug_routes
        )
        self.followers = Followers(cleared=self.prefixes.removed)
        self._health = HealthChecker(options.health_interval, on_up=self.followers.nudge)
        self._first = config
        self._following: asyncio.Task[None] | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path = scope["path"]
        application = self.proxy if path.startswith("/v1/") or path in OF_ENGINES else self._admin
        return application(scope, receive, closing(send) if self.leaving else send)

    async def __aenter__(self) -> Self:
        self.apply(self._first)
        self._following = asyncio.create_task(self._sources.follow(self.apply), name="follow configuration")
        await self._sources.settled()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._health.close()
        await self.followers.close()
        self.endpoints.update(())

    def apply(self, config: RouterConfig) -> None:
        """Make a configuration the one in effect."""
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
        self._models[:] = [model.name for model in config.models]


def make_sources(options: Options) -> Configuration:
    """What the command line says to follow.

    Raises:
        ConfigError: the API is to be followed, and this pod has no ServiceAccount.
    """
    cluster, service = options.cluster, options.service
    followed: Source | None = None
    if isinstance(service, Path):
        followed = WatchedFile(service)
    elif service is not None and cluster is not None:
        followed = FollowedEndpoints(cluster, service)
    return Configuration(
        options.endpoints,
        config=WatchedFile(options.config) if options.config else None,
        config_map=FollowedConfigMap(cluster, options.config_map) if cluster and options.config_map else None,
        service=followed,
        policy=options.policy,
    )


def closing(send: Send) -> Send:
    """``send``, with ``connection: close`` in the answer."""

    def send_last(message: MutableMapping[str, Any]) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"connection", b"close")]
        return send(message)

    return send_last


class Server(uvicorn.Server):
    """uvicorn, except that a stop by signal is a normal end (status 0), and one that idle clients hardly notice."""

    def __init__(self, config: uvicorn.Config, router: Router, farewell: float) -> None:
        super().__init__(config)
        self._router = router
        self._farewell = farewell

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let clients go for ``farewell`` seconds, then close what is idle and wait for the rest.

        A connection closed just when its client sends the next request costs that client an error. So for a while
        requests on open connections are answered as ever, with ``connection: close``.
        """
        self._router.leaving = True
        for _ in range(ACCEPT_ROUNDS):
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        end = time.monotonic() + self._farewell
        connections = self.server_state.connections  # uvicorn tells nobody when one ends
        while connections and time.monotonic() < end and not self.force_exit:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


def make_server(router: Router, options: Options) -> Server:
    """A server for ``serve(sockets=[...])``."""
    farewell = min(FAREWELL, options.drain_timeout / 2)
    config = uvicorn.Config(
        router,
        http=LimitedProtocol,
        loop="uvloop",
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=CLIENT_KEEP_ALIVE,
        timeout_graceful_shutdown=max(1, round(options.drain_timeout - farewell)),
    )
    return Server(config, router, farewell)


def inherited(number: int) -> socket.socket:
    """The listening socket that came with the process as descriptor ``number``: others may accept from it as well.

    Raises:
        OSError: that is no listening socket.
    """
    listener = socket.socket(fileno=number)
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise OSError(errno.EINVAL, "not a listening socket")
    listener.set_inheritable(False)
    return listener


def listen(host: str, port: int) -> socket.socket:
    """A bound socket.

    Raises:
        OSError: the port is in use, or the address is not this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


async def run(options: Options, listeners: list[socket.socket]) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is under way."""
    async with Router(options) as router:
        for listener in listeners:
            host, port = listener.getsockname()[:2]
            logger.info("listening on http://%s:%d/v1", f"[{host}]" if ":" in host else host, port)
        # What exists now lives as long as the process: keep the collector off it, and let it come seldom.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        await make_server(router, options).serve(sockets=listeners)
        logger.info("stopped")


def main(arguments: Sequence[str] | None = None) -> None:
    """The program ``blade_router``."""
    options = parse_arguments(arguments)
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.DEBUG if options.log_level == "DEBUG" else logging.WARNING)
    try:
        listeners = [listen(options.host, options.port)]
    except OSError as error:
        sys.exit(
            f"blade_router: cannot listen on {options.host}:{options.port}: {error.strerror}; choose another --port"
        )
    if options.listen_fd is not None:
        try:
            listeners.append(inherited(options.listen_fd))
        except OSError as error:
            sys.exit(f"blade_router: ${environment.LISTEN_FD}={options.listen_fd}: {error.strerror}; unset it")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(options, listeners))
    except ConfigError as error:
        sys.exit(f"blade_router: {error}")
    finally:
        for listener in listeners:
            listener.close()


if __name__ == "__main__":
    main()
