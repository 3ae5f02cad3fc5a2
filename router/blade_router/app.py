"""The router as a process: the parts put together behind uvicorn, and the program ``blade_router``."""

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Sequence
from types import FrameType
from typing import Self

import uvicorn
import uvloop

from blade_protocol.routing import PolicyName, RouterConfig
from blade_router.admin import make_admin
from blade_router.arguments import Options, parse_arguments
from blade_router.client import Send
from blade_router.config import ConfigError
from blade_router.endpoints import EndpointSet
from blade_router.health import HealthChecker
from blade_router.metrics import Metrics
from blade_router.policies import make_policy
from blade_router.proxy import Proxy
from blade_router.request import Receive, Scope
from blade_router.sources import Configuration

logger = logging.getLogger("blade_router")

CLIENT_KEEP_ALIVE = 75
"""Seconds an idle client connection stays open."""


class Router:
    """The ASGI application, and the background work it needs: use it as an async context manager.

    ``/v1/*`` goes straight to the data path, the rest to the admin application.

    Raises:
        ConfigError: from the constructor, when the configuration file is missing or not valid.
    """

    def __init__(self, options: Options) -> None:
        self._sources = Configuration(
            options.endpoints, config=options.config, service=options.service_file, policy=options.policy
        )
        config = self._sources.start()
        self.endpoints = EndpointSet(connect_timeout=options.connect_timeout)
        self.metrics = Metrics(self.endpoints)
        self.proxy = Proxy(
            self.endpoints,
            make_policy(config.policy),
            self.metrics,
            max_body_bytes=options.max_body_bytes,
            max_tries=options.max_tries,
            first_byte_timeout=options.first_byte_timeout,
        )
        self._policy: PolicyName = config.policy
        self._models: list[str] = []
        self._admin = make_admin(self.proxy, self.metrics, self._models)
        self._health = HealthChecker(options.health_interval)
        self._first = config
        self._following: asyncio.Task[None] | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        application = self.proxy if scope["path"].startswith("/v1/") else self._admin
        return application(scope, receive, send)

    async def __aenter__(self) -> Self:
        self.apply(self._first)
        self._following = asyncio.create_task(self._sources.follow(self.apply), name="follow configuration")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._health.close()
        self.endpoints.update(())

    def apply(self, config: RouterConfig) -> None:
        """Make a configuration the one in effect."""
        self._health.watch(self.endpoints.update(config.endpoints))
        if config.policy != self._policy:
            self._policy = config.policy
            self.proxy.policy = make_policy(config.policy)
        self._models[:] = config.models


class Server(uvicorn.Server):
    """uvicorn, except that a stop by signal is a normal end (status 0)."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True


def make_server(router: Router, options: Options) -> Server:
    """A server for ``serve(sockets=[...])``."""
    return Server(
        uvicorn.Config(
            router,
            http="httptools",
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
            timeout_graceful_shutdown=max(1, round(options.drain_timeout)),
        )
    )


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


async def run(options: Options, listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, then finish what is under way."""
    async with Router(options) as router:
        host, port = listener.getsockname()[:2]
        logger.info("listening on http://%s:%d/v1", f"[{host}]" if ":" in host else host, port)
        # What exists now lives as long as the process: keep the collector off it, and let it come seldom.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        await make_server(router, options).serve(sockets=[listener])
        logger.info("stopped")


def main(arguments: Sequence[str] | None = None) -> None:
    """The program ``blade_router``."""
    options = parse_arguments(arguments)
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.DEBUG if options.log_level == "DEBUG" else logging.WARNING)
    try:
        listener = listen(options.host, options.port)
    except OSError as error:
        sys.exit(
            f"blade_router: cannot listen on {options.host}:{options.port}: {error.strerror}; choose another --port"
        )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(options, listener))
    except ConfigError as error:
        sys.exit(f"blade_router: {error}")
    finally:
        listener.close()


if __name__ == "__main__":
    main()
