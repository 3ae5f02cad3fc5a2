"""Engines fail in every way, at every moment, clients leave: nobody else notices, and nothing stays behind.

The short form runs in the test's own loop, from seeds. The long one (``make soak``) drives the router as a program
with a million requests, while engines are killed and its endpoints and keys change.
"""

import asyncio
import contextlib
import gc
import itertools
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from benchmarks.router.engines import Engine, fleet
from benchmarks.router.load import crowd
from benchmarks.router.prompts import grouped
from benchmarks.router.routers import Router, Skipped, ours, started, write_config
from benchmarks.router.rows.admission import write_keys
from router_support.engine import MockEngine, Mode
from router_support.serving import Running, eventually, question, raw_post, serving

from blade_router.http.upstream.connection import Connection

CALLERS = 12
STEPS = 7
REQUESTS_A_STEP = 40
MODES: list[Mode] = ["ok", "status", "draining", "hang", "garbage"]
LOSING: list[Mode] = [*MODES, "reset", "reset-after-head", "break"]
"""With those that lose the connection. A request is sent to two such engines and no third, so there may be one."""
SOAK_REQUESTS = int(os.environ.get("SOAK_REQUESTS", "1000000"))


class Crowd:
    """Clients that send requests until they are stopped; each response is checked as it comes."""

    def __init__(self, router: Running, engines: list[MockEngine], seed: int) -> None:
        self.router = router
        self.engines = {engine.name: engine for engine in engines}
        self.outcomes: Counter[str] = Counter()
        self.stop = False
        self._rng = random.Random(seed)
        self._numbers = itertools.count()
        self._open: set[int] = set()

    async def run(self) -> None:
        """One client's life."""
        while not self.stop:
            number = next(self._numbers)
            self._open.add(number)
            try:
                kind = self._rng.choice(("unary", "unary", "stream", "stream", "leave"))
                self.outcomes[await self._one(kind, number)] += 1
            finally:
                self._open.discard(number)

    async def settled(self) -> None:
        """Every request that is in flight now has ended."""
        now = set(self._open)
        await eventually(lambda: not now & self._open, "requests end")

    async def some(self, count: int) -> None:
        """That many requests have ended from now on."""
        aim = self.outcomes.total() + count
        await eventually(lambda: self.outcomes.total() >= aim, "requests end")

    async def _one(self, kind: str, number: int) -> str:
        if kind == "leave":
            await self._leave(number)
            return kind
        body = question(stream=kind == "stream") | {"user": str(number)}
        response = await self.router.client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        engine = self.engines[response.headers["x-blade-endpoint"]]
        if kind == "unary":
            assert response.json()["choices"][0]["message"]["content"] == f"from {engine.name}"
            return kind
        *events, end = response.content.split(b"\n\n")[:-1]
        assert events == [engine.event(index).strip() for index in range(len(events))]
        if end == b"data: [DONE]":
            assert len(events) == engine.tokens
            return kind
        assert json.loads(end.removeprefix(b"data: "))["error"]["code"] == "engine_lost"
        assert events, "a stream that had not begun went elsewhere"
        return "cut"

    async def _leave(self, number: int) -> None:
        body = question(stream=self._rng.random() < 0.5) | {"user": str(number)}
        reader, writer = await raw_post(self.router.port, body)
        if self._rng.random() < 0.5:
            await reader.read(1)
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def heal(engine: MockEngine, router: Running) -> None:
    """The engine is well again, and the router has seen it."""
    engine.mode = "ok"
    if engine._server is None:
        await engine.start()
    endpoint = next(each for each in router.router.endpoints.all if each.name == engine.name)
    await eventually(lambda: endpoint.health.up and endpoint.admits, f"{engine.name} is found well")


@contextlib.asynccontextmanager
async def nothing_left(log: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Tasks, sockets and connections are as many afterwards as before."""

    log.set_level("CRITICAL", "blade_router")  # pytest keeps log records, they hold errors, and those their frames

    def count() -> dict[str, int]:
        gc.collect()
        return {
            "tasks": len(asyncio.all_tasks()),
            "sockets": len(psutil.Process().net_connections()),
            "connections": sum(type(each) is Connection for each in gc.get_objects()),
        }

    before = count()
    yield
    await eventually(lambda: all(count()[name] <= before[name] for name in before), f"no more than {before}")


@pytest.mark.parametrize("seed", range(2))
async def test_while_one_engine_lives_no_client_sees_an_error(
    seed: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.suppress(ImportError):  # a budget spares engines that are in trouble; here they are meant to be
        monkeypatch.setattr("blade_router.endpoints.retry_budget.MIN_RETRIES_PER_SECOND", 10_000)
    rng = random.Random(seed)
    async with nothing_left(caplog), contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(MockEngine(name, records=False)) for name in "abcd"]
        router = await stack.enter_async_context(
            serving(*engines, max_tries=len(engines), first_byte_timeout=1.0, connect_timeout=0.5)
        )
        clients = Crowd(router, engines, seed)
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(clients.run()) for _ in range(CALLERS)]
            survivor = loser = engines[0]
            for _ in range(STEPS):
                others = [engine for engine in engines if engine is not survivor]
                heir = rng.choice(others)
                await heal(heir, router)
                await heal(loser, router)
                await clients.settled()  # those that had tried them while they failed have a response from the survivor
                survivor = heir
                loser = rng.choice([engine for engine in engines if engine is not survivor])
                for engine in engines:
                    if engine is survivor:
                        continue
                    engine.mode = rng.choice(LOSING if engine is loser else MODES)
                    engine.status = rng.choice((500, 502, 503))
                    if engine is loser and rng.random() < 0.5:
                        await engine.kill()
                    elif engine._server is None:
                        await engine.start()
                await clients.some(REQUESTS_A_STEP)
            clients.stop = True
            await asyncio.gather(*running)
        assert min(clients.outcomes[kind] for kind in ("unary", "stream", "leave")) > 50, clients.outcomes
        await eventually(lambda: router.router.metrics.in_flight == 0)
        assert [endpoint.in_flight for endpoint in router.router.endpoints.all] == [0] * 4
        await eventually(lambda: not any(engine.active for engine in engines), "no engine works for nobody")


async def test_without_an_engine_clients_get_503_and_the_first_one_back_is_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with nothing_left(caplog), MockEngine("a") as a, MockEngine("b") as b, serving(a, b) as router:
        for _ in range(5):
            await a.kill()
            await b.kill()
            responses = await asyncio.gather(*(router.chat() for _ in range(CALLERS)))
            assert {response.status_code for response in responses} == {503}
            await a.start()
            endpoint = router.router.endpoints.all[0]
            await eventually(lambda endpoint=endpoint: endpoint.health.up)
            responses = await asyncio.gather(*(router.chat() for _ in range(CALLERS)))
            assert {response.status_code for response in responses} == {200}
            await b.start()


async def kill_in_turn(engines: list[Engine]) -> None:
    """Kill one engine after another every 2 s, and start it again after one."""
    for engine in itertools.cycle(engines):
        await asyncio.sleep(1)
        engine.kill()
        await asyncio.sleep(1)
        await engine.start()


async def reload(folder: Path, engines: list[Engine], *, keys: bool) -> None:
    """Now and then three endpoints of four, and a key more or less."""
    for turn in itertools.count():
        await asyncio.sleep(3)
        write_config(folder, [engine.url for place, engine in enumerate(engines) if turn % 2 or place != turn // 2 % 4])
        if keys:
            write_keys(folder, *[{"name": f"k{index}", "key": f"sk-{index}"} for index in range(1 + turn % 3)])


@contextlib.asynccontextmanager
async def soaked(folder: Path, engines: list[Engine]) -> AsyncIterator[tuple[Router, bool]]:
    """A router as a program, with keys if it knows them."""
    config = write_config(folder, [engine.url for engine in engines])
    options = ("--config", str(config), "--first_byte_timeout", "1", "--max_tries", "4")
    keys = write_keys(folder, {"name": "k0", "key": "sk-0"})
    async with contextlib.AsyncExitStack() as stack:
        try:
            router = await stack.enter_async_context(
                started(ours(*options, "--keys", str(keys)), engines, pinned=False)
            )
            yield router, True
        except Skipped:
            router = await stack.enter_async_context(started(ours(*options), engines, pinned=False))
            yield router, False


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_million_requests_without_an_error_and_in_flat_memory(tmp_path: Path) -> None:
    slices = 20
    async with fleet(4) as engines, soaked(tmp_path, engines) as (router, keys):
        trouble = [
            asyncio.create_task(kill_in_turn(engines)),
            asyncio.create_task(reload(tmp_path, engines, keys=keys)),
        ]
        memory = []
        for number in range(slices):
            outcome = await crowd(
                router.port, 32, grouped(2000, number, unique=16), requests=SOAK_REQUESTS // slices, key="sk-0"
            )
            assert not outcome.errors, outcome.errors
            memory.append(router.rss())
        for task in trouble:
            task.cancel()
        ends = await asyncio.gather(*trouble, return_exceptions=True)
        assert not any(isinstance(end, Exception) for end in ends)
    print(f"resident memory: {', '.join(f'{each:.0f}' for each in memory)} MiB")
    assert memory[-1] - memory[slices // 2] < 10
