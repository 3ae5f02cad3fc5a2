"""Three routers behind one Service: a key gets its limit, however its connections are spread over them."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from router_support.engine import MockEngine
from router_support.keys import content, key, post_chat, write
from router_support.serving import Running, eventually, serving

from blade_protocol import environment, paths
from blade_router.admin.lending import ReplicaLending
from blade_router.admission.lending.quota_exchange import FORGET_SECONDS, QuotaExchange

LIMIT = 30


def exchange_of(router: Running) -> QuotaExchange:
    lending = router.router._lending
    assert isinstance(lending, ReplicaLending)
    assert lending.exchange is not None
    return lending.exchange


@contextlib.asynccontextmanager
async def replicas(count: int, tmp_path: Path, engine: MockEngine, **limits: Any) -> AsyncIterator[list[Running]]:
    """So many routers that know each other by a file, as those of the local runtime do."""
    keys, peers = tmp_path / "keys.json", tmp_path / "my-router.json"
    write(keys, content(key(**limits)))
    write(peers, json.dumps({}))
    async with contextlib.AsyncExitStack() as stack:
        routers = [await stack.enter_async_context(serving(engine, keys=keys, peers=peers)) for _ in range(count)]
        endpoints = [{"url": router.url, "internal_url": router.admin_url} for router in routers]
        write(peers, json.dumps({"endpoints": endpoints}))
        await know_each_other(routers)
        yield routers


async def know_each_other(routers: list[Running]) -> None:
    await eventually(lambda: {exchange_of(router).rank for router in routers} == set(range(len(routers))))


async def passing(routers: list[Running], requests: int) -> int:
    """How many of so many requests pass, sent to the routers in turn."""
    statuses = [(await post_chat(routers[number % len(routers)])).status_code for number in range(requests)]
    assert set(statuses) <= {200, 429}
    return statuses.count(200)


async def test_one_connection_gets_the_whole_limit(tmp_path: Path, engine: MockEngine) -> None:
    async with replicas(3, tmp_path, engine, requests_per_minute=LIMIT) as routers:
        assert await passing(routers[1:2], 40) == LIMIT


async def test_all_replicas_at_once_get_no_more(tmp_path: Path, engine: MockEngine) -> None:
    async with replicas(3, tmp_path, engine, requests_per_minute=LIMIT) as routers:
        found = await asyncio.gather(*(post_chat(router) for router in routers for _ in range(25)))
        assert [each.status_code for each in found].count(200) == LIMIT
        refused = next(each for each in found if each.status_code == 429)
        assert f"Limit {LIMIT}" in refused.json()["error"]["message"]


async def test_tokens_and_concurrent_requests_are_lent(tmp_path: Path, engine: MockEngine) -> None:
    engine.gate = asyncio.Semaphore(0)
    async with replicas(3, tmp_path, engine, concurrent=6, tokens_per_minute=100_000) as routers:
        pending = [asyncio.create_task(post_chat(routers[0], max_tokens=15_000)) for _ in range(6)]
        await eventually(lambda: engine.active == 6)
        assert (await post_chat(routers[1], max_tokens=10)).status_code == 429, "six run already"
        for _ in range(6):
            engine.gate.release()
        assert {(await each).status_code for each in pending} == {200}
        assert len({exchange_of(router).id for router in routers}) == 3


async def test_a_limit_that_is_used_up_costs_few_messages(
    tmp_path: Path, engine: MockEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replicas(2, tmp_path, engine, requests_per_minute=4) as routers:
        asked = 0
        reply = QuotaExchange.reply

        def counted(self: QuotaExchange, message: bytes) -> bytes:
            nonlocal asked
            asked += b'"needs":[[' in message
            return reply(self, message)

        monkeypatch.setattr(QuotaExchange, "reply", counted)
        for router in routers:
            assert router.router._lending is not None
        # The clock stands still, so what nobody had is not asked for again.
        for router in routers:
            borrower = router.router._lending.borrow.__self__  # type: ignore[union-attr]
            borrower._clock = lambda: 1000.0
        assert await passing(routers[:1], 100) == 4
        assert 1 <= asked <= 4


async def test_a_replica_that_cannot_be_reached_leaves_the_others_their_share(
    tmp_path: Path, engine: MockEngine
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # it does not listen
        keys, peers = tmp_path / "keys.json", tmp_path / "my-router.json"
        write(keys, content(key(requests_per_minute=LIMIT)))
        async with serving(engine, keys=keys, peers=peers) as router:
            urls = [router.admin_url, f"http://127.0.0.1:{silent.getsockname()[1]}"]
            write(peers, json.dumps({"endpoints": [{"url": url} for url in urls]}))
            await eventually(lambda: router.router.admission.quotas.replicas == 2)
            assert await passing([router], LIMIT) == LIMIT // 2


async def test_one_that_does_not_respond_keeps_its_share_and_the_others_go_on(
    tmp_path: Path, engine: MockEngine
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # it does not listen
        lost = {"url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        async with replicas(2, tmp_path, engine, requests_per_minute=LIMIT + 1) as routers:
            known = json.loads((tmp_path / "my-router.json").read_text())["endpoints"]
            write(tmp_path / "my-router.json", json.dumps({"endpoints": [*known, lost]}))
            await eventually(lambda: {router.router.admission.quotas.replicas for router in routers} == {3})
            await know_each_other(routers)
            # 31 are shares of 11, 10 and 10; the rest goes to the first of those that respond
            assert await passing(routers[1:], LIMIT) == 21
            assert await passing(routers, LIMIT) == 0


async def test_alone_a_replica_lends_nothing_and_admits_what_is_larger_than_its_share(
    tmp_path: Path, engine: MockEngine
) -> None:
    async with replicas(2, tmp_path, engine, tokens_per_minute=1000) as routers:
        exchange = exchange_of(routers[1])
        (other,) = [each for each in exchange._replicas if each.id != exchange.id]
        other.responds = False
        exchange._find_rank()
        assert exchange.rank is None
        assert (await post_chat(routers[1], max_tokens=800)).status_code == 200


async def test_what_was_lent_to_a_lost_replica_comes_back(tmp_path: Path, engine: MockEngine) -> None:
    async with replicas(2, tmp_path, engine, requests_per_minute=LIMIT) as routers:
        assert await passing(routers[:1], LIMIT) == LIMIT
        assert await passing(routers[1:], 5) == 0
        exchange = exchange_of(routers[1])
        (lost,) = exchange._ledger.replicas
        exchange._seen[lost] -= FORGET_SECONDS - 1
        exchange._forget_lost()
        assert await passing(routers[1:], 1) == 0, "not before what it used has left the window"
        exchange._seen[lost] -= 2
        exchange._forget_lost()
        borrow, routers[1].router.admission.borrow = routers[1].router.admission.borrow, None
        assert await passing(routers[1:], LIMIT) == LIMIT // 2
        routers[1].router.admission.borrow = borrow


async def test_replicas_that_do_not_see_a_new_token_at_the_same_time_go_on_lending(
    tmp_path: Path, engine: MockEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(token))
    async with replicas(2, tmp_path, engine, requests_per_minute=LIMIT) as routers:
        sooner, later = (exchange_of(router) for router in routers)
        later._token._reread_at = float("inf")  # its file is the old one still
        sooner._token._reread_at = 0.0
        token.write_text("new")
        for one, other in ((sooner, later), (later, sooner)):
            for replica in one._replicas:
                if replica.id == other.id:
                    await one._hello(replica)
                    assert replica.responds


async def test_only_holders_of_the_token_may_borrow(
    tmp_path: Path, engine: MockEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(token))
    async with replicas(2, tmp_path, engine, requests_per_minute=LIMIT) as routers:
        async with httpx.AsyncClient(base_url=routers[0].admin_url, trust_env=False) as client:
            query = {"sender": "me", "needs": [["key team-a", 0, 10, -1000]]}
            assert (await client.post(paths.INTERNAL_QUOTAS, json=query)).status_code == 403
            absurd = ([["key team-a", 0, 1, 10**30]], [["key team-a", 0, -1, 0]], [[""] * 4], [["", 0, 1, 0]] * 300)
            queries = [json.dumps({"sender": "a", "needs": needs}).encode() for needs in absurd]
            for body in (b"", b"[]", b'{"sender": 5}', *queries):
                headers = {"x-blade-internal-token": "secret"}
                response = await client.post(paths.INTERNAL_QUOTAS, content=body, headers=headers)
                assert response.status_code == 400, body
            assert (
                await client.post(paths.INTERNAL_QUOTAS, content=b" " * 100_000, headers=headers)
            ).status_code == 413
        assert await passing(routers, 2 * LIMIT) == LIMIT
