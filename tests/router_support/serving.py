"""A router inside the test's own event loop, and small helpers to talk to it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from blade_protocol.routing import EndpointConfig
from blade_router.app import make_admin_server, make_server
from blade_router.arguments import Options
from blade_router.http.listening import listen
from blade_router.http.server import Server
from blade_router.http.tls import Certificate
from blade_router.router import Router
from router_support.engine import MockEngine

TEST_SECONDS = 60
"""A test that takes longer hangs. (uvloop swallows the exception that pytest-timeout raises from its signal.)"""


class Running:
    """A router that serves, and clients of its public and its admin port."""

    def __init__(
        self, router: Router, server: Server, url: str, client: httpx.AsyncClient, admin: httpx.AsyncClient
    ) -> None:
        self.router = router
        self.server = server
        self.url = url
        self.client = client
        self.admin = admin

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    @property
    def admin_port(self) -> int:
        port = self.admin.base_url.port
        assert port is not None
        return port

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    async def chat(self, *, stream: bool = False, **extra: Any) -> httpx.Response:
        return await self.client.post("/v1/chat/completions", json=question(stream=stream), **extra)

    async def metric(self, name: str) -> float:
        """The value of one sample (with its labels) of ``/metrics``; 0 when it is not there."""
        text = (await self.admin.get("/metrics")).text
        return next((float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)

    async def status(self) -> dict[str, Any]:
        """``/status`` with the endpoints by name."""
        status: dict[str, Any] = (await self.admin.get("/status")).json()
        status["endpoints"] = {endpoint["name"]: endpoint for endpoint in status["endpoints"]}
        return status


def question(*, stream: bool = False) -> dict[str, Any]:
    return {"model": "mock", "messages": [{"role": "user", "content": "hello"}], "stream": stream}


@contextlib.asynccontextmanager
async def serving(
    *engines: MockEngine, wait: bool = True, certificate: Certificate | None = None, **options: Any
) -> AsyncIterator[Running]:
    """A router over these engines; with ``wait``, once it has found all of them healthy."""
    endpoints = tuple(EndpointConfig(url=engine.url, name=engine.name) for engine in engines)
    settings = Options(
        **{"endpoints": endpoints, "drain_timeout": 1, "slow_start": 0, "connect_timeout": 10.0, **options}
    )
    async with Router(settings) as router:
        listener, admin_listener = listen("127.0.0.1", 0), listen("127.0.0.1", 0)
        url, admin_url = (f"http://127.0.0.1:{each.getsockname()[1]}" for each in (listener, admin_listener))
        server, admin_server = make_server(router, settings, certificate), make_admin_server(router, settings)
        try:
            await server.start([listener])
            await admin_server.start([admin_listener])
            async with (
                httpx.AsyncClient(base_url=url, timeout=20, trust_env=False, verify=False) as client,
                httpx.AsyncClient(base_url=admin_url, timeout=20, trust_env=False) as admin,
            ):
                if wait:
                    await eventually(lambda: router.endpoints.usable_count() == len(engines))
                async with asyncio.timeout(TEST_SECONDS):
                    yield Running(router, server, url, client, admin)
        finally:
            await server.close()
            await admin_server.close()


async def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Wait until it is true; an error after ten seconds."""
    try:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - anything may be waited for, not only what has an event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"never became true: {what or condition}") from None


async def raw_post(port: int, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a chat request over a plain socket, so that the test decides when it is read and closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(data), data)
    )
    await writer.drain()
    return reader, writer
