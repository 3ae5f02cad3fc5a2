"""The router as a program, with few descriptors: whoever connects in crowds harms neither its liveness nor an engine's
record."""

import asyncio
import contextlib
import json
import resource
from collections.abc import AsyncIterator, Callable
from typing import Any

from router_support.engine import MockEngine
from router_support.program import running
from router_support.raw import BODY, RawClient, Response, connected, get, post

SILENT = 400
ONE_ADDRESS = ("--max_connections_per_address", "0")
STREAMED = BODY[:-1] + b', "stream": true}'


@contextlib.asynccontextmanager
async def crowd(port: int, size: int, sent: bytes = b"") -> AsyncIterator[list[RawClient]]:
    """Connections that send this much and then nothing; those the router does not take wait in its kernel's queue."""
    clients: list[RawClient] = []
    try:
        for _ in range(size):
            clients.append(await RawClient.connect(port))
            clients[-1].send(sent)
        yield clients
    finally:
        for client in clients:
            client.writer.transport.abort()


async def response_to(port: int, request: bytes) -> Response:
    async with connected(port) as client:
        client.send(request)
        return await client.response()


async def endpoints(admin: int, until: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The endpoints of ``/status`` by name, once they are like that."""
    while True:
        status = json.loads((await response_to(admin, get(b"/status"))).body)
        found = {each["name"]: each for each in status["endpoints"]}
        if until(found):
            return found
        await asyncio.sleep(0.05)


def all_up(found: dict[str, Any]) -> bool:
    return all(each["up"] for each in found.values())


async def test_silent_connections_do_not_stop_the_router_and_are_no_engines_fault() -> None:
    async with (
        MockEngine("a") as a,
        MockEngine("b") as b,
        running("--endpoints", f"{a.url},{b.url}", "--health_interval", "0.3") as (port, admin, _),
    ):
        await endpoints(admin, all_up)
        async with crowd(port, SILENT):
            for _ in range(3):
                assert (await response_to(port, get(b"/live"))).status == 200
                assert (await response_to(port, post())).status == 200
                await asyncio.sleep(0.3)  # health checks meanwhile
            found = await endpoints(admin, all_up)
        assert [(each["failures"], each["ejected_for"]) for each in found.values()] == [(0, 0.0)] * 2


async def test_when_every_connection_is_in_use_liveness_probes_get_through_and_others_a_503() -> None:
    gate = asyncio.Semaphore(0)
    async with (
        MockEngine("a", gate=gate) as engine,
        running("--endpoints", engine.url, "--max_connections", "20", *ONE_ADDRESS) as (port, admin, _),
    ):
        await endpoints(admin, all_up)
        async with crowd(port, 20, post(STREAMED)):
            while engine.active < 20:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)
            async with crowd(port, 200):  # more than the reserve has room for
                assert (await response_to(port, get(b"/live"))).status == 200
                refused = await response_to(port, post())
                assert (refused.status, refused.header("retry-after")) == (503, "1")
                assert refused.header("connection") == "close"
                assert refused.error["code"] == "overloaded"
            assert engine.active == 20, "nobody's request was given up"
        while True:
            gate.release()
            if (await response_to(port, get(b"/live"))).status == 200 and not engine.active:
                break
        engine.gate = None
        assert (await response_to(port, post())).status == 200


async def test_the_limit_of_open_files_is_raised() -> None:
    async with MockEngine("a") as engine, running("--endpoints", engine.url, soft=64, hard=512) as (_, _, pid):
        assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (512, 512)
