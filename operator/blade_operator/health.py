"""What the operator answers to its kubelet and to Prometheus: ``/healthz``, ``/readyz`` and ``/metrics``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

Probe = Callable[[], str]
"""What is wrong; empty when all is well."""


@asynccontextmanager
async def serve(port: int, healthy: Probe, ready: Probe, host: str | None = None) -> AsyncIterator[int]:
    """Answer on ``port`` (0: a free one) of ``host`` (default: of every address) meanwhile; gives the port."""
    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", _answer(healthy)),
            web.get("/readyz", _answer(ready)),
            web.get("/metrics", _metrics),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _answer(probe: Probe) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        wrong = probe()
        return web.Response(text=f"{wrong or 'ok'}\n", status=503 if wrong else 200)

    return answer


async def _metrics(request: web.Request) -> web.Response:
    return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})
