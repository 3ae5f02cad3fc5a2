"""Replicas of a router, and its workers, know what the others have sent where."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from router_support.cached_engine import CachedEngine
from router_support.engine import MockEngine
from router_support.keys import write
from router_support.program import running
from router_support.serving import Running, eventually, serving

from blade_protocol import environment, paths
from blade_router.admin import replica_sync as module
from blade_router.admin.replica_sync import ReplicaSync
from blade_router.policies.replica_sync import messages
from blade_router.workers import hash_seed

PROMPT = {"model": "m", "messages": [{"role": "user", "content": "What is the capital of France? " * 100}]}
PROMPTS, ENGINES, PREFIX = 24, 4, 4000


def sync_of(router: Running) -> ReplicaSync:
    sync = router.router._sync
    assert sync is not None
    return sync


@contextlib.asynccontextmanager
async def replicas(tmp_path: Path, *engines: MockEngine, replica_sync: bool = True) -> AsyncIterator[list[Running]]:
    """Two routers that know each other by a file, as those of the local runtime do."""
    peers = tmp_path / "my-router.json"
    write(peers, json.dumps({}))
    async with contextlib.AsyncExitStack() as stack:
        flags: dict[str, Any] = {
            "peers": peers,
            "replica_sync": replica_sync,
            "policy": "auto",
            "health_interval": 0.05,
        }
        routers = [await stack.enter_async_context(serving(*engines, **flags)) for _ in range(2)]
        for number, router in enumerate(routers):
            router.router.policy_options.rng.seed(number)
        urls = [{"url": router.url, "internal_url": router.admin_url} for router in routers]
        write(peers, json.dumps({"endpoints": urls}))
        await eventually(lambda: {router.router._replicas for router in routers} == {2})
        if replica_sync:
            await eventually(lambda: all(sync_of(router).siblings.log.synced == 1 for router in routers))
        yield routers


async def hit_rate(tmp_path: Path, *, replica_sync: bool) -> float:
    """Share of KV blocks that one router finds cached of prompts that the other sent while an engine was down."""
    rng = random.Random(7)
    bodies = [
        {"model": "m", "messages": [{"role": "user", "content": "".join(rng.choices("abcdefgh ", k=PREFIX))}]}
        for _ in range(PROMPTS)
    ]
    async with contextlib.AsyncExitStack() as stack:
        engines = [CachedEngine(f"e{number}", cache_blocks=4000, publishes_events=False) for number in range(ENGINES)]
        for engine in engines:
            await stack.enter_async_context(engine)
        one, other = await stack.enter_async_context(replicas(tmp_path, *engines, replica_sync=replica_sync))
        await becomes_usable(engines, one, other, count=ENGINES - 1)
        for body in bodies:
            assert (await one.client.post("/v1/chat/completions", json=body)).status_code == 200
        if replica_sync:
            known = sync_of(other).siblings._siblings[sync_of(one)._id]
            await eventually(lambda: not sync_of(one).siblings.log.events and not known.open)
        await becomes_usable(engines, one, other, count=ENGINES)
        for engine in engines:
            engine.hits = engine.blocks_seen = 0
        for body in bodies:
            assert (await other.client.post("/v1/chat/completions", json=body)).status_code == 200
        return sum(engine.hits for engine in engines) / sum(engine.blocks_seen for engine in engines)


async def becomes_usable(engines: Sequence[MockEngine], *routers: Running, count: int) -> None:
    """The first so many engines are up, and both routers have seen it."""
    for number, engine in enumerate(engines):
        engine.health = 200 if number < count else 503
    await eventually(lambda: all(router.router.endpoints.usable_count() == count for router in routers))


async def test_hits_rise_when_replicas_are_in_sync(tmp_path: Path) -> None:
    assert await hit_rate(tmp_path, replica_sync=True) > 0.95
    assert await hit_rate(tmp_path, replica_sync=False) < 0.9


async def test_a_replica_that_stops_is_guessed_again(tmp_path: Path, engine: MockEngine) -> None:
    async with replicas(tmp_path, engine) as (one, other):
        assert sync_of(other).router != sync_of(one).router
        sync_of(other)._replicas.clear()
        await eventually(lambda: sync_of(one).siblings.log.synced == 0)
        assert "blade_router_replica_sync_siblings 0.0" in (await one.admin.get(paths.METRICS)).text


async def test_a_sibling_that_is_heard_while_there_is_nobody_to_tell_is_forgotten_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: MockEngine
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    peers = tmp_path / "my-router.json"
    write(peers, json.dumps({}))
    async with serving(engine, peers=peers) as router:
        sync = sync_of(router)
        await asyncio.sleep(0.2)
        sync.received(messages.encode_batch(messages.Batch(messages.VERSION, "a", "a", messages.SALT, 1, [])))
        assert sync.siblings.log.synced == 1
        await eventually(lambda: sync.siblings.log.synced == 0)


async def test_one_replica_collects_and_sends_nothing(tmp_path: Path, engine: MockEngine) -> None:
    peers = tmp_path / "my-router.json"
    write(peers, json.dumps({}))
    async with serving(engine, peers=peers) as router:
        for _ in range(3):
            await router.client.post("/v1/chat/completions", json=PROMPT)
        await asyncio.sleep(0.1)
        sync = sync_of(router)
        assert (sync.counts()[0]["sent"], sync._outgoing.sequence, sync.siblings.log.active) == (0, 0, False)


@pytest.mark.interpreted
async def test_members_that_come_back_see_that_they_missed_something(tmp_path: Path, engine: MockEngine) -> None:
    """While a router has nobody to tell, nothing is collected: what siblings follow of it may have ended."""
    async with replicas(tmp_path, engine) as (one, _):
        sync = sync_of(one)
        urls, sequences = list(sync._replicas), [sync._outgoing.sequence]
        make = sync._outgoing.batch

        def batch(now: float) -> messages.Batch:
            made = make(now)
            sequences.append(made.sequence)
            return made

        sync._outgoing.batch = batch  # type: ignore[method-assign]
        sync.set_members([])
        await eventually(lambda: not sync.siblings.log.active)
        sync.set_members(urls)
        told = len(sequences)
        await eventually(lambda: len(sequences) > told + 2)
        assert sequences[told:][1] - sequences[told:][0] == 1
        assert sequences[told] - sequences[told - 1] == 2


async def test_only_holders_of_the_token_may_report(
    tmp_path: Path, engine: MockEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(token))
    async with serving(engine, peers=("http://127.0.0.1:1", "http://127.0.0.1:2")) as router:
        sent = [0, 1, 0.0, engine.name, 5.0, 0, False, b""]
        message = msgspec.msgpack.encode([1, "liar", "liar", messages.SALT, 1, [sent]])
        path, headers = paths.INTERNAL_REPLICA_SYNC, {"x-blade-internal-token": "secret"}
        async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as client:
            assert (await client.post(path, content=message)).status_code == 403
            for bad in (b"", b"\xc1", message[:-1], message.replace(b"\x01", b"\x02", 1)):
                assert (await client.post(path, content=bad, headers=headers)).status_code == 400, bad
            too_long = bytes(messages.MAX_BYTES + 1)
            assert (await client.post(path, content=too_long, headers=headers)).status_code == 413
            assert sync_of(router).siblings.received == 0
            assert (await client.post(path, content=message, headers=headers)).status_code == 200
        (endpoint,) = router.router.endpoints.all
        assert endpoint.prefill.open == 1
        await eventually(lambda: endpoint.prefill.open == 0)  # it has fallen silent
        assert (await router.client.post("/v1/chat/completions", json=PROMPT)).status_code == 200


async def knows(admin: int, name: str) -> float:
    """Blocks of the prompt that the worker which responds expects at that engine."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{admin}", trust_env=False) as client:
        found = (await client.post("/debug/route", json=PROMPT, headers={"x-blade-internal-token": "secret"})).json()
    return float(next(each for each in found["endpoints"] if each["name"] == name)["scores"].get("cached_blocks", 0))


async def all_know(admin: int, name: str) -> bool:
    return min([await knows(admin, name) for _ in range(12)]) > 5


async def becomes_true(admin: int, name: str) -> None:
    async with asyncio.timeout(20):
        while not await all_know(admin, name):  # noqa: ASYNC110 - other processes
            await asyncio.sleep(0.05)


async def send(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        async with asyncio.timeout(20):
            while (await client.post("/v1/chat/completions", json=PROMPT)).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_processes_know_each_others_prompts(
    tmp_path: Path, engine: MockEngine, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    """Two routers, each of one or of two processes: all of them hash alike, and learn of requests to one."""
    token, peers = tmp_path / "token", tmp_path / "my-router.json"
    token.write_text("secret")
    write(peers, json.dumps({}))
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(token))
    monkeypatch.setenv("BLADE_ENDPOINTS_DIR", str(tmp_path))
    monkeypatch.delenv(hash_seed.VARIABLE, raising=False)
    flags = ("--endpoints", engine.url, "--peers", "my-router", "--workers", workers, "--policy", "auto")
    async with running(*flags, soft=1024, hard=1024) as one, running(*flags, soft=1024, hard=1024) as other:
        urls = [
            {"url": f"http://127.0.0.1:{port}", "internal_url": f"http://127.0.0.1:{admin}"}
            for port, admin, _ in (one, other)
        ]
        write(peers, json.dumps({"endpoints": urls}))
        await send(one[0])
        await becomes_true(one[1], engine.url)
        async with asyncio.timeout(20):  # what was sent before they had read who they are is not repeated
            while not await all_know(other[1], engine.url):
                await send(one[0])


def test_the_seed_is_that_of_the_token_alone() -> None:
    assert hash_seed.of_token(b"secret") == hash_seed.of_token(b"secret") != hash_seed.of_token(b"other")
    assert 0 <= int(hash_seed.of_token(b"secret")) < 1 << 32
    assert hash_seed.random() != hash_seed.random()
