"""The sweep repairs what watches miss: missed deletions, missed changes, and a server that went back in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from operator_support.apiserver import FakeApiServer, config_map, fake_api_server, llm_service, refuse
from operator_support.local import until
from operator_support.watching import KEY, Watching, watching

from blade_operator.cluster.kubernetes.api import METADATA, Api
from blade_operator.cluster.kubernetes.fence import WriteFence
from blade_operator.cluster.kubernetes.kinds import KINDS
from blade_operator.cluster.kubernetes.watching import kopf_settings, sweep
from blade_operator.cluster.kubernetes.watching.scopes import Scope
from blade_operator.model.objects import Ref

SCOPE = Scope(KINDS["ConfigMap"], None)
TOO_LARGE = {"kind": "Status", "code": 504, "message": "Too large resource version: 105, current: 60"}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with fake_api_server() as server:
        yield server
        assert server.writes == []


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "PATIENCE", 0.3)
    monkeypatch.setattr(kopf_settings, "WATCH_AT_MOST_EVERY", 0.05)


@pytest.fixture
async def unwatched(server: FakeApiServer) -> AsyncIterator[Watching]:
    """Nothing but sweeps that a test makes."""
    async with Api(server.configuration, WriteFence()) as api:
        yield Watching(server, api, (), ())


async def test_a_sweep_reads_metadata_only_and_in_pages(server: FakeApiServer, unwatched: Watching) -> None:
    server.page = 2
    for name in "abcde":
        server.put("ConfigMap", config_map(name, 0))
        unwatched.cache.put({**server.objects["ConfigMap", "team", name], "kind": "ConfigMap"})
    await unwatched.sweeper.sweep(SCOPE)
    assert [request.query.get("continue") for request in server.requests] == [None, "2", "4"]
    assert {request.headers["Accept"] for request in server.requests} == {METADATA}
    assert all(r.query["labelSelector"] == "app.kubernetes.io/managed-by=bladellm" for r in server.requests)


async def test_what_was_missed_is_fetched_and_what_is_gone_removed(server: FakeApiServer, unwatched: Watching) -> None:
    for name in ("same", "gone", "older"):
        server.put("ConfigMap", config_map(name, 0))
        unwatched.cache.put({**server.objects["ConfigMap", "team", name], "kind": "ConfigMap"})
    server.delete("ConfigMap", "gone")
    server.put("ConfigMap", config_map("older", 0, x="1"))
    server.put("ConfigMap", config_map("missed", 0))
    unlabelled = config_map("foreign", 0)
    unlabelled["metadata"]["labels"].pop("serving.bladellm.io/name")
    server.put("ConfigMap", unlabelled)
    await unwatched.sweeper.sweep(SCOPE)
    assert unwatched.data() == {"same": {}, "older": {"x": "1"}, "missed": {}}
    fetched = [r.query["fieldSelector"] for r in server.requests if "fieldSelector" in r.query]
    assert sorted(fetched) == ["metadata.name=missed", "metadata.name=older"]
    assert {request.method for request in server.requests} == {"GET"}


async def test_many_are_fetched_together(server: FakeApiServer, unwatched: Watching) -> None:
    for number in range(250):
        server.put("ConfigMap", config_map(f"c{number}", 0))
    await unwatched.sweeper.sweep(SCOPE)
    assert len(unwatched.data()) == 250
    assert len([r for r in server.requests if r.headers["Accept"] != METADATA]) == 3


async def test_what_came_after_the_list_stays(server: FakeApiServer, unwatched: Watching) -> None:
    """Its event comes while the list is on its way."""
    wanted = server._list

    def respond(request: web.Request, scope: Scope) -> web.Response:
        unwatched.cache.put({**config_map("new", 101), "kind": "ConfigMap"})
        return wanted(request, scope)

    server._list = respond  # type: ignore[method-assign]
    await unwatched.sweeper.sweep(SCOPE)
    assert set(unwatched.data()) == {"new"}
    server.version = 101
    await unwatched.sweeper.sweep(SCOPE)
    assert unwatched.data() == {}


async def test_versions_that_go_back_replace_what_is_newer(server: FakeApiServer, unwatched: Watching) -> None:
    """The server's etcd was restored from a backup."""
    for name, version in (("changed", 90), ("made since", 95)):
        unwatched.cache.put({**config_map(name, version, x="new"), "kind": "ConfigMap"})
    unwatched.cache.remove(Ref("ConfigMap", "team", "deleted since"), 96)
    server.restore(
        60, [("ConfigMap", config_map("changed", 50, x="old")), ("ConfigMap", config_map("deleted since", 40))]
    )
    await unwatched.sweeper.sweep(SCOPE)
    assert unwatched.data() == {"changed": {"x": "old"}, "deleted since": {}}
    unwatched.cache.put({**config_map("changed", 61, x="next"), "kind": "ConfigMap"})
    unwatched.cache.put({**config_map("made since", 62), "kind": "ConfigMap"})
    assert unwatched.data()["changed"] == {"x": "next"}  # versions count from there
    assert "made since" in unwatched.data()


async def test_versions_that_went_back_and_grew_past_the_known_ones_are_found_out(
    server: FakeApiServer, unwatched: Watching
) -> None:
    unwatched.cache.put({**config_map("a", 90, x="new"), "kind": "ConfigMap"})
    unwatched.cache.remove(Ref("ConfigMap", "team", "b"), 91)
    server.restore(200, [("ConfigMap", config_map("a", 50, x="old")), ("ConfigMap", config_map("b", 51))])
    await unwatched.sweeper.sweep(SCOPE)
    assert unwatched.data() == {"a": {"x": "old"}, "b": {}}


async def test_a_server_whose_etcd_was_restored_is_followed_again(server: FakeApiServer) -> None:
    server.put("LLMService", llm_service(0))
    server.put("ConfigMap", config_map("a", 0, x="new"))
    server.put("ConfigMap", config_map("b", 0))
    async with watching(server) as watched:
        await watched.synced()
        server.restore(60, [("LLMService", llm_service(50)), ("ConfigMap", config_map("a", 51, x="old"))])
        server.once["watch /api/v1/configmaps"].append((504, TOO_LARGE["message"]))
        server.send("ConfigMap", "ERROR", TOO_LARGE)
        await until(lambda: watched.data() == {"a": {"x": "old"}})
        await until(lambda: watched.cache.version(Ref("LLMService", "team", "qwen")) == 50)
        server.put("ConfigMap", config_map("a", 0, x="newer"))
        await until(lambda: watched.data() == {"a": {"x": "newer"}})
        observed = await watched.cluster.observe(KEY)
        assert observed is not None


async def test_watches_begin_anew_when_versions_went_back(server: FakeApiServer) -> None:
    """From a version that is yet to come again, the server would send nothing for a long time, and no error."""
    server.put("LLMService", llm_service(0))
    server.put("ConfigMap", config_map("a", 0, x="new"))
    async with watching(server) as watched:
        await watched.synced()
        server.restore(60, [("LLMService", llm_service(50)), ("ConfigMap", config_map("a", 51, x="old"))])
        server.reset_watches()
        watched.sweeper.request(SCOPE)
        await until(lambda: watched.data() == {"a": {"x": "old"}})
        server.put("ConfigMap", config_map("a", 0, x="newer"))
        await until(lambda: watched.data() == {"a": {"x": "newer"}})


async def test_what_is_skipped_is_not_swept_and_counts_as_unseen(server: FakeApiServer, unwatched: Watching) -> None:
    await unwatched.scopes.skip({SCOPE: "forbidden"})
    running = asyncio.ensure_future(unwatched.sweeper.run())
    unwatched.sweeper.request(SCOPE)
    await asyncio.sleep(0.1)
    assert server.requests == []
    await unwatched.sweeper.sweep(SCOPE)  # one that was under way
    assert str(SCOPE) in unwatched.scopes.unsynced
    await unwatched.scopes.skip({})
    unwatched.sweeper.request(SCOPE)
    await until(lambda: str(SCOPE) not in unwatched.scopes.unsynced)
    running.cancel()


async def test_a_list_that_cannot_be_read_is_requested_again(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("ConfigMap", config_map("a", 0))
    refusals = [(503, "later"), (410, "The provided continue parameter is too old")]
    wanted = server._list

    def respond(request: web.Request, scope: Scope) -> web.Response:
        if scope == SCOPE and request.query["limit"] == str(sweep.PAGE) and refusals:
            return refuse(refusals.pop(0))
        return wanted(request, scope)

    monkeypatch.setattr(server, "_list", respond)
    async with watching(server) as watched:
        await until(lambda: watched.scopes.unsynced == ["configmaps"])
        await watched.synced()
        assert set(watched.data()) == {"a"}
    assert refusals == []
