"""The server of a machine that is not machine 0 of its engine: it runs that machine's ranks and answers probes.

SIGTERM or SIGINT: it goes on until machine 0, which drains, has ended, for the drain time-out at most. A SIGINT after
that ends it at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from blade_llm.api.common.errors import ApiError, install_error_handlers
from blade_llm.api.metrics.requests import CONTENT_TYPE
from blade_llm.config import EngineConfig
from blade_llm.engine.follower import Follower
from blade_llm.engine.version import package_version
from blade_llm.server.http.access import AccessControl, AccessRules
from blade_llm.server.http.limits import HttpLimits
from blade_llm.server.http.server import HttpServer
from blade_llm.server.http.sockets import listen_all
from blade_llm.server.signals import drain_on_signals
from blade_llm.server.supervisor import PortTakenError, ServerOptions
from blade_llm.server.waiting import first_of
from blade_protocol import paths

_BACKLOG: Final = 128
_METHODS: Final = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_log = logging.getLogger(__name__)


async def run_follower(
    config: EngineConfig,
    sock: socket.socket,
    rules: AccessRules,
    limits: HttpLimits,
    options: ServerOptions,
    on_listening: Callable[[], None],
) -> str | None:
    """Follow machine 0 until it, this machine or a rank ends. ``sock``: bound and not listening. ``on_listening`` is
    called when probes are answered.

    Returns why, or None after a signal. Raises :class:`~blade_llm.server.supervisor.PortTakenError`.
    """
    try:
        listen_all([sock], _BACKLOG)
    except OSError as error:
        raise PortTakenError(f"cannot listen on port {sock.getsockname()[1]}: {error.strerror}") from None
    follower = Follower(config, log_level=options.log_level)
    failed = asyncio.Event()
    server = HttpServer(make_follower_app(follower, rules, failed.is_set), limits, options.log_level)
    serving = await server.begin(sock)
    if not serving.done():
        on_listening()
    stop = asyncio.Event()
    drain_on_signals(stop, follower.kill)
    running = asyncio.ensure_future(follower.run())
    try:
        await first_of(asyncio.wait([running, serving], return_when=asyncio.FIRST_COMPLETED), stop.wait())
        if stop.is_set() and follower.joined:
            _log.info("waiting for machine 0 to end, at most %g s", options.drain_timeout)
            await asyncio.wait([running], timeout=options.drain_timeout)
        failed.set()
        running.cancel()
        (ended,) = await asyncio.gather(running, return_exceptions=True)
        if stop.is_set():
            return None
        if isinstance(ended, asyncio.CancelledError):
            return "its HTTP server has ended"
        if isinstance(ended, BaseException):
            raise ended
        return ended
    finally:
        server.should_exit = True
        await serving


def make_follower_app(follower: Follower, rules: AccessRules, failed: Callable[[], bool]) -> FastAPI:
    """Probes, and for everything else one message. ``failed``: this machine is about to end."""
    app = FastAPI(title="BladeLLM", version=package_version(), docs_url=None, redoc_url=None, openapi_url=None)
    install_error_handlers(app)
    app.add_middleware(AccessControl, rules=rules, token=rules.read_token())

    async def live(request: Request) -> Response:
        if failed():
            raise ApiError(503, "this machine ends", kind="server_error", code="stalled")
        return JSONResponse({"status": "ok"})

    async def health(request: Request) -> Response:
        if failed() or not follower.serving:
            raise ApiError(503, f"machine 0 at {follower.leader} is not ready", kind="server_error", code="not_ready")
        return JSONResponse({"status": "ok"})

    async def version(request: Request) -> Response:
        return JSONResponse({"version": package_version()})

    async def metrics(request: Request) -> Response:
        return Response(content="", headers={"content-type": CONTENT_TYPE})  # all are the leader's

    async def elsewhere(request: Request) -> Response:
        message = f"this is a machine behind machine 0 at {follower.leader.host}, the leader, which serves requests"
        raise ApiError(404, message, kind="not_found_error", code="not_the_leader")

    for path, handler in (
        (paths.LIVE, live),
        (paths.HEALTH, health),
        (paths.READY, health),
        (paths.VERSION, version),
        (paths.METRICS, metrics),
        (paths.METRIC, metrics),
    ):
        app.add_api_route(path, handler, methods=["GET"], include_in_schema=False)
    app.add_api_route("/{path:path}", elsewhere, methods=_METHODS, include_in_schema=False)
    return app
