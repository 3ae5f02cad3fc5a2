"""The router as a process: serving until a signal, with workers or alone, and the program ``blade_router``."""

import asyncio
import contextlib
import dataclasses
import gc
import logging
import math
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

import uvloop

from blade_protocol import environment, paths
from blade_router.admission import hash_key
from blade_router.arguments import Options, parse_arguments
from blade_router.compiled import finder
from blade_router.config.internal_token import token_file
from blade_router.config.parsing import ConfigError
from blade_router.http.accept.descriptors import connections_for, descriptor_limit, raise_descriptor_limit
from blade_router.http.body_budget import BodyBudget
from blade_router.http.listening import inherited, listen, shareable
from blade_router.http.request_reader import HttpLimits
from blade_router.http.server import Server
from blade_router.http.tls import Certificate
from blade_router.router import Router
from blade_router.workers import hash_seed
from blade_router.workers.supervisor import Supervisor, unblock_signals
from blade_telemetry import logs
from blade_telemetry.export import TracingUnavailableError, require_opentelemetry
from blade_telemetry.options import read_options

logger = logging.getLogger("blade_router")

T = TypeVar("T")

CLIENT_KEEP_ALIVE = 75
"""Seconds an idle client connection stays open."""
PROBES = (paths.LIVE.encode(), paths.HEALTH.encode(), paths.PING.encode())
"""Paths that are served also when every connection is in use."""
LINGER_SECONDS = 1.0
"""Seconds at the end in which an open connection may bring another request."""
ADMIN_CONNECTIONS = 32
"""Connections of the admin port; the descriptors that are kept for the router itself are enough for them."""
ADMIN_BODY_BYTES = 32 << 20
"""Bytes of bodies that the admin port keeps at a time."""
ADMIN_DRAIN_SECONDS = 1.0
"""Seconds a request on the admin port has to finish once the last one on the public port has ended."""


def make_server(router: Router, options: Options, certificate: Certificate | None = None) -> Server:
    """Make the server of a router's public port; inside the event loop."""
    connections = max_connections(options)
    linger = min(LINGER_SECONDS, options.drain_timeout / 2)
    server = Server(
        router,
        dataclasses.replace(_limits(options), check_head=router.check_head),
        lame_duck=linger,
        drain_timeout=options.drain_timeout - linger,
        tls=certificate.context if certificate is not None else None,
        refused=router.refused,
        max_connections=connections,
        max_connections_per_address=share(options, options.max_connections_per_address, connections // 2),
        exempt=options.trusted_proxies.trusts,
        essential=PROBES,
        comment_interval=options.stream_comment_interval,
    )
    router.serve_with(server)
    return server


def make_admin_server(router: Router, options: Options) -> Server:
    """Make the server of a router's admin port, plain HTTP whatever the public one speaks; inside the event loop."""
    return Server(
        router.serve_admin,
        dataclasses.replace(_limits(options), budget=BodyBudget(ADMIN_BODY_BYTES)),
        lame_duck=0.0,
        drain_timeout=ADMIN_DRAIN_SECONDS,
        max_connections=ADMIN_CONNECTIONS,
    )


def _limits(options: Options) -> HttpLimits:
    return HttpLimits(
        max_body_bytes=options.max_body_bytes,
        budget=BodyBudget(options.body_budget_bytes),
        header_timeout=options.header_timeout,
        body_timeout=options.body_timeout,
        body_deadline=options.body_deadline or math.inf,
        min_body_rate=options.min_body_rate,
        keep_alive=CLIENT_KEEP_ALIVE,
    )


def max_connections(options: Options) -> int:
    """The limit of client connections of this process: its part of the router's, as far as there are descriptors."""
    wanted = share(options, options.max_connections, 0)
    possible = connections_for(descriptor_limit())
    if possible < wanted:
        logger.warning(
            "%d open files are enough for %d client connections, not for %d; raise the hard limit (ulimit -Hn)",
            *(descriptor_limit(), possible, wanted),
        )
    return min(wanted, possible)


def share(options: Options, whole: int | None, default: int) -> int:
    """This process's part of a limit of the router, rounded up; ``default`` where there is none."""
    return default if whole is None else -(-whole // options.workers)


async def run(
    options: Options, listeners: list[socket.socket], admin: socket.socket, certificate: Certificate | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, or until the parent of this worker is gone; then finish requests in flight."""
    async with contextlib.AsyncExitStack() as stack:
        router = await stack.enter_async_context(Router(options))
        scheme = "http" if certificate is None else "https"
        for listener in listeners:
            logger.info("listening on %s://%s/v1", scheme, _address(listener))
        logger.info("admin port: http://%s", _address(admin))
        logger.info("the hot path is %s", finder.form())
        # What exists now lives as long as the process: exempt it from garbage collection, and collect seldom.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        server, admin_server = make_server(router, options, certificate), make_admin_server(router, options)
        stop = asyncio.Event()

        def interrupted() -> None:
            if stop.is_set():
                server.force_stop()
                admin_server.force_stop()
            stop.set()

        server.loop.add_signal_handler(signal.SIGTERM, stop.set)
        server.loop.add_signal_handler(signal.SIGINT, interrupted)
        if options.place is not None:
            server.loop.add_reader(options.place.parent, stop.set)
            unblock_signals()
        if certificate is not None:
            watching = asyncio.create_task(certificate.watch(), name="watch certificate")
            stack.callback(watching.cancel)
        await server.start(listeners)
        await admin_server.start([admin])
        if router.workers is not None:
            await stack.enter_async_context(router.workers)
        await stop.wait()
        if options.place is not None:
            server.loop.remove_reader(options.place.parent)
        await server.stop()
        router.request_queues.demand.close()
        await admin_server.stop()  # the last: a drain is observed, and probed, to its end
        logger.info("stopped")


def main(arguments: Sequence[str] | None = None) -> None:
    """The program ``blade_router``."""
    is_program = arguments is None
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["hash-key"]:
        hash_key.main(arguments[1:])
        return
    options = parse_arguments(arguments)
    if is_program and options.replica_sync and options.peers is not None:
        hash_seed.restart_with(token_file())
    where = f"[{options.worker}] " if options.place is not None else ""
    worker = {} if options.place is None else {"worker": options.worker}
    text = f"%(asctime)s %(levelname)s {where}%(name)s: %(message)s"
    logs.configure(options.log_level, options.log_format, where=worker, text=text)
    if read_options(options.otlp_endpoint, options.trace_sampling) is not None:
        try:
            require_opentelemetry()
        except TracingUnavailableError as error:
            sys.exit(f"blade_router: {error}")
    raise_descriptor_limit()
    if options.workers > 1 and options.place is None:
        sys.exit(supervise(sys.argv[1:] if arguments is None else arguments, options))
    certificate = _certificate(options)
    listeners = _listeners(options)
    admin = _admin_listener(options)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(options, listeners, admin, certificate))
    except ConfigError as error:
        sys.exit(f"blade_router: {error}")
    finally:
        for listener in (*listeners, admin):
            listener.close()


def supervise(arguments: Sequence[str], options: Options) -> int:
    """Run as the parent of workers; returns the exit status."""
    try:
        supervisor = Supervisor(
            arguments,
            options.workers,
            (_open(shareable, options.host, options.port, "--port"), _open(shareable, *_admin_address(options))),
            drain_timeout=options.drain_timeout,
            pass_fds=() if options.listen_fd is None else (options.listen_fd,),
        )
    except OSError as error:
        sys.exit(f"blade_router: cannot open a socket for each worker: {error.strerror}; lower --workers")
    return supervisor.run()


def _listeners(options: Options) -> list[socket.socket]:
    if options.place is not None:
        listeners = [inherited(options.place.listener)]
    else:
        listeners = [_open(listen, options.host, options.port, "--port")]
    if options.listen_fd is not None:
        try:
            listeners.append(inherited(options.listen_fd))
        except OSError as error:
            sys.exit(f"blade_router: ${environment.LISTEN_FD}={options.listen_fd}: {error.strerror}; unset it")
    return listeners


def _admin_listener(options: Options) -> socket.socket:
    if options.place is not None:
        return inherited(options.place.admin_listener)
    return _open(listen, *_admin_address(options))


def _admin_address(options: Options) -> tuple[str, int, str]:
    return options.admin_host, options.admin_port, "--admin_port"


def _open(opener: Callable[[str, int], T], host: str, port: int, flag: str) -> T:
    """What ``opener`` makes of an address; exits with one line when it cannot."""
    try:
        return opener(host, port)
    except OSError as error:
        sys.exit(f"blade_router: cannot listen on {host}:{port}: {error.strerror}; choose another {flag}")


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _certificate(options: Options) -> Certificate | None:
    if options.tls_cert is None or options.tls_key is None:
        return None
    try:
        return Certificate(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        sys.exit(f"blade_router: --tls_cert {options.tls_cert}, --tls_key {options.tls_key}: {error}")


if __name__ == "__main__":
    main()
