"""Several processes behind one port: a page shows all of them, whichever it is connected to."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator

import httpx
from router_support.engine import MockEngine
from router_support.program import ports_of
from router_support.serving import TEST_SECONDS, question
from router_support.ui import report, viewing


@contextlib.asynccontextmanager
async def two_workers(engine: MockEngine) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """The base URL of a router of two processes, and a client of its admin port."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "blade_router.app", "--port", "0", "--workers", "2", "--endpoints", engine.url),
        stderr=PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(TEST_SECONDS):
            port, admin_port = await ports_of(process.stderr)
            draining = asyncio.create_task(process.stderr.read())
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin_port}", trust_env=False) as admin:
                while len(await pids(admin)) < 2:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
                yield f"http://127.0.0.1:{port}", admin
            draining.cancel()
    finally:
        process.terminate()
        await process.wait()


async def pids(admin: httpx.AsyncClient) -> list[int]:
    return [worker["pid"] for worker in (await admin.get("/status")).json()["workers"]]


def client(base: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=base, trust_env=False)


async def test_a_page_shows_the_requests_of_all_workers(engine: MockEngine) -> None:
    async with two_workers(engine) as (base, _), client(base) as one, viewing(one) as viewer:
        await viewer.next()
        assert viewer.state["router"]["workers"] == 2
        for _ in range(40):  # the kernel spreads connections over the processes
            async with client(base) as each:
                assert (await each.post("/v1/chat/completions", json=question())).status_code == 200
        await viewer.until(lambda state: len(state["requests"]) == 40)
        ids = [row["id"].removeprefix("req-") for row in viewer.state["requests"]]
        assert len({id[:16] for id in ids}) == 2, "each process begins the ids that it makes in its own way"
        await viewer.next()
        points = viewer.state["traffic"]["points"]
        assert any(point["rate"] > 0 for point in points)
        assert [point["time"] for point in points] == sorted({point["time"] for point in points})
        assert {row["status"] for row in viewer.state["requests"]} == {200}


async def test_the_report_that_one_got_outlives_it(engine: MockEngine) -> None:
    async with two_workers(engine) as (base, admin):
        assert (await admin.post("/internal/service", json=report())).status_code == 204
        holder = (await admin.get("/status")).json()["worker"]  # the same connection, so the process that got it
        os.kill((await pids(admin))[holder], signal.SIGKILL)
        for _ in range(4):  # the one that is left, and the next one, which asks it
            async with client(base) as each, viewing(each) as viewer:
                await viewer.until(lambda state: state["service"] is not None)
                assert viewer.state["service"] == report()
