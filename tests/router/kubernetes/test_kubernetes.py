"""A router in a cluster watches the API server, and keeps what it knows whatever happens to that."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from router_support.engine import MockEngine
from router_support.kubernetes import CONFIG_MAPS, SLICES, TLS, FakeApi
from router_support.serving import Running, eventually, question, raw_post, serving

from blade_router.config import sources
from blade_router.config.parsing import ConfigError
from blade_router.kubernetes import EndpointSliceSource, reflector


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "INITIAL_BACKOFF", 0.01)
    monkeypatch.setattr(reflector, "MAX_BACKOFF", 0.05)
    monkeypatch.setattr(sources, "INITIAL_SYNC_SECONDS", 0.3)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApi]:
    async with FakeApi(tmp_path / "serviceaccount") as api:
        yield api


def put(api: FakeApi, engine: MockEngine, service: str = "demo", **conditions: bool) -> None:
    """A slice with this engine alone, since each has a port of its own here."""
    endpoint = {
        "addresses": ["127.0.0.1"],
        "conditions": conditions or {"ready": True},
        "targetRef": {"name": engine.name, "uid": engine.name},
    }
    api.put(
        SLICES,
        f"slice-{engine.name}",
        labels={"kubernetes.io/service-name": service},
        addressType="IPv4",
        ports=[{"name": "http", "port": engine.port}],
        endpoints=[endpoint],
    )


def put_config(api: FakeApi, content: Any, name: str = "demo-router") -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    api.put(CONFIG_MAPS, name, data={"router.json": text})


@contextlib.asynccontextmanager
async def watched_endpoints(api: FakeApi) -> AsyncIterator[EndpointSliceSource]:
    source = EndpointSliceSource(api.cluster, "demo")
    task = asyncio.create_task(source.watch(lambda: None))
    try:
        yield source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def names(router: Running | EndpointSliceSource) -> list[str]:
    if isinstance(router, Running):
        return [endpoint.name for endpoint in router.router.endpoints.all if not endpoint.config.draining]
    return [endpoint.name for endpoint in router.config.endpoints if not endpoint.draining]


# endpoints


async def test_requests_follow_the_slices(api: FakeApi) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, MockEngine("other") as other:
        put(api, a)
        put(api, other, service="another-service")
        async with serving(wait=False, service="demo", cluster=api.cluster) as router:
            assert names(router) == ["a"], "known before the first request is accepted"
            assert (await router.chat()).headers["x-blade-endpoint"] == "a"
            put(api, b)
            await eventually(lambda: names(router) == ["a", "b"])
            api.delete(SLICES, "slice-a")
            await eventually(lambda: names(router) == ["b"])
            assert (await router.chat()).headers["x-blade-endpoint"] == "b"
        assert api.count(SLICES, watch=False) == 1, "the changes came by the watch"


async def test_a_terminating_engine_finishes_its_stream_and_gets_nothing_new(api: FakeApi) -> None:
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate, tokens=3) as a, MockEngine("b") as b:
        put(api, a)
        async with serving(wait=False, service="demo", cluster=api.cluster) as router:
            reader, writer = await raw_post(router.port, question(stream=True))
            await reader.readuntil(a.event(0))
            put(api, b)
            put(api, a, ready=False, serving=True, terminating=True)
            await eventually(lambda: names(router) == ["b"])
            assert {(await router.chat()).headers["x-blade-endpoint"] for _ in range(4)} == {"b"}
            put(api, a, ready=False, serving=False, terminating=True)
            api.delete(SLICES, "slice-a")
            await eventually(lambda: len(router.router.endpoints.all) == 1)
            gate.release()
            gate.release()
            await reader.readuntil(b"[DONE]")
            writer.close()


async def test_an_engine_that_is_not_ready_any_more_finishes_its_stream(api: FakeApi) -> None:
    gate = asyncio.Semaphore(1)
    async with MockEngine("a", gate=gate, tokens=2) as a:
        put(api, a)
        async with serving(wait=False, service="demo", cluster=api.cluster) as router:
            reader, writer = await raw_post(router.port, question(stream=True))
            await reader.readuntil(a.event(0))
            put(api, a, ready=False, serving=False, terminating=False)
            await eventually(lambda: names(router) == [])
            assert (await router.chat()).headers["retry-after"] == "1"
            gate.release()
            await reader.readuntil(b"[DONE]")
            writer.close()


async def test_an_engine_that_is_yet_to_be_ready_gets_what_is_held_once_it_passes_the_routers_own_check(
    api: FakeApi, tmp_path: Path
) -> None:
    """While no other is ready: the kubelet's word takes a while."""
    config = tmp_path / "router.json"
    config.write_text('{"hold": {"max_requests": 9}}')
    async with MockEngine("a", health=503) as a, MockEngine("b", health=200) as b:
        put(api, a, ready=False, serving=False, terminating=False)
        async with serving(wait=False, service="demo", cluster=api.cluster, config=config) as router:
            held = asyncio.create_task(router.chat())
            await eventually(lambda: router.router.request_queues.pending.count() == 1 and a.probes > 1)
            assert not a.received, "one that does not pass its health check is not tried"
            a.health = 200
            assert (await held).headers["x-blade-endpoint"] == "a"
            put(api, a)
            await eventually(lambda: names(router) == ["a"] and not router.router.endpoints.all[0].config.starting)
            put(api, b, ready=False, serving=False, terminating=False)
            put(api, a, ready=False, serving=True, terminating=True)
            await eventually(lambda: [each.name for each in router.router.endpoints.all] == ["a", "b"])
            assert (await router.chat()).headers["x-blade-endpoint"] == "b"


async def test_an_engine_on_standby_gets_what_is_held_once_it_passes_the_routers_own_check_again(
    api: FakeApi, tmp_path: Path
) -> None:
    config = tmp_path / "router.json"
    config.write_text('{"hold": {"max_requests": 9, "wakes": true}}')
    async with MockEngine("a") as a:
        put(api, a)
        async with serving(wait=False, service="demo", cluster=api.cluster, config=config) as router:
            assert (await router.chat()).status_code == 200
            a.health = 503
            put(api, a, ready=False, serving=False, terminating=False)
            await eventually(lambda: router.router.endpoints.all[0].config.starting)
            probes = a.probes
            await eventually(lambda: a.probes > probes + 1)
            before = len(a.received)
            held = asyncio.create_task(router.chat())
            await eventually(lambda: router.router.request_queues.pending.count() == 1)
            assert len(a.received) == before
            a.health = 200
            assert (await held).headers["x-blade-endpoint"] == "a"


# the API fails


async def test_expired_history_is_listed_again(api: FakeApi) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, watched_endpoints(api) as source:
        await eventually(lambda: api.watching == 1)
        api.silent = True
        put(api, a)
        put(api, b)
        api.delete(SLICES, "slice-a")
        api.forget()
        api.silent = False
        api.cut()
        await eventually(lambda: names(source) == ["b"])
        assert api.count(SLICES, watch=False) == 2
        assert source.live


async def test_a_server_that_always_responds_410_is_retried_with_backoff(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reflector, "INITIAL_BACKOFF", 1000)
    monkeypatch.setattr(reflector, "MAX_BACKOFF", 1000)
    api.forget()
    api.version -= 1  # its lists are older than its watches go
    async with watched_endpoints(api):
        await eventually(lambda: "too old resource version" in caplog.text)
        assert api.count(SLICES, watch=False) == 2, "once more at once, and then with pauses"


@pytest.mark.parametrize("rest", [b"", b'{"type":"MODIFIED","object":{"meta'])
async def test_a_watch_that_breaks_is_continued_where_it_was(api: FakeApi, rest: bytes) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b:
        put(api, a)
        async with watched_endpoints(api) as source:
            await eventually(lambda: api.watching == 1)
            api.cut(rest)
            api.silent = True  # it can only be learnt from the history
            put(api, b)
            await eventually(lambda: names(source) == ["a", "b"])
            assert api.count(SLICES, watch=False) == 1


async def test_a_bookmark_is_where_the_watch_continues(api: FakeApi) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b:
        put(api, a)
        async with watched_endpoints(api) as source:
            await eventually(lambda: api.watching == 1)
            put(api, b, service="another-service")
            api.forget()
            api.bookmark()
            api.end()
            await eventually(lambda: api.watching == 0)
            put(api, b)
            await eventually(lambda: names(source) == ["a", "b"])
            assert api.count(SLICES, watch=False) == 1
            assert int(api.requests[-1].query["resourceVersion"]) == api.version - 1


async def test_a_watch_that_falls_silent_is_replaced(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "WATCH_IDLE_TIMEOUT", 0.1)
    async with MockEngine("a") as a, watched_endpoints(api) as source:
        await eventually(lambda: api.watching == 1)
        api.silent = True
        put(api, a)
        await eventually(lambda: names(source) == ["a"])
        assert api.count(SLICES, watch=False) == 1


async def test_what_is_known_stays_while_the_api_is_away(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b:
        put(api, a)
        async with serving(wait=False, service="demo", cluster=api.cluster) as router:
            await api.stop()
            await eventually(lambda: "connection refused; what is known stays in effect" in caplog.text)
            assert (await router.chat()).headers["x-blade-endpoint"] == "a"
            caplog.clear()
            await asyncio.sleep(0.2)
            assert caplog.text.count("what is known stays") <= 1, "not said with every try"
            put(api, b)
            await api.start()
            await eventually(lambda: names(router) == ["a", "b"])


async def test_a_router_that_starts_without_the_api_waits_for_it(api: FakeApi, tmp_path: Path) -> None:
    mounted = tmp_path / "router.json"
    mounted.write_text('{"policy": "round-robin"}')
    await api.stop()
    async with MockEngine("a") as a:
        options = {"service": "demo", "config_map": "demo-router", "config": mounted, "cluster": api.cluster}
        async with serving(wait=False, **options) as router:
            response = await router.chat()
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert (await router.status())["policy"] == "round-robin", "as mounted"
            assert (await router.client.get("/live")).status_code == 200
            put(api, a)
            await api.start()
            await eventually(lambda: names(router) == ["a"])
            assert (await router.chat()).status_code == 200


@pytest.mark.parametrize("status", [401, 403, 429, 500])
async def test_a_refusal_is_logged_in_the_servers_words_and_tried_again(
    api: FakeApi, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    api.refuse = status
    async with MockEngine("a") as a, watched_endpoints(api) as source:
        await eventually(lambda: f"you get {status}" in caplog.text)
        assert not source.live
        put(api, a)
        api.refuse = 0
        await eventually(lambda: names(source) == ["a"])


async def test_a_token_that_is_replaced_is_used(api: FakeApi) -> None:
    async with watched_endpoints(api) as source:
        await eventually(lambda: api.watching == 1)
        api.token = "token-2"
        api.cut()
        await eventually(lambda: not source.live)
        (api.folder / "token").write_text("token-2\n")
        await eventually(lambda: source.live)
        assert api.requests[-1].token == "token-2"
        assert api.count(SLICES, watch=False) == 1


async def test_a_server_of_another_authority_does_not_get_the_token(
    api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    right = (api.folder / "ca.crt").read_bytes()
    (api.folder / "ca.crt").write_bytes((TLS / "other.crt").read_bytes())
    async with watched_endpoints(api) as source:
        await eventually(lambda: "certificate verify failed" in caplog.text.lower())
        assert not api.requests
        (api.folder / "ca.crt").write_bytes(right)
        await eventually(lambda: source.live)


async def test_a_pod_without_service_account_fails_at_the_start(api: FakeApi) -> None:
    (api.folder / "namespace").unlink()
    with pytest.raises(ConfigError, match="automountServiceAccountToken"):
        EndpointSliceSource(api.cluster, "demo")


# the ConfigMap


async def test_the_config_map_is_watched_and_a_mistake_in_it_changes_nothing(
    api: FakeApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mounted = tmp_path / "router.json"
    mounted.write_text('{"models": [{"name": "mounted"}]}')
    put_config(api, {"policy": "round-robin", "models": [{"name": "one"}]})
    async with serving(wait=False, config=mounted, config_map="demo-router", cluster=api.cluster) as router:

        async def effective() -> tuple[str, list[str]]:
            status = await router.status()
            return status["policy"], status["models"]

        assert await effective() == ("round-robin", ["one"]), "the API's is newer than the file"
        mounted.write_text('{"models": [{"name": "older"}]}')
        put_config(api, {"models": [{"name": "two"}]})
        while await effective() != ("auto", ["two"]):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        for mistake in ('{"models": 1}', "{", '{"modles": []}'):
            caplog.clear()
            put_config(api, mistake)
            await eventually(lambda: "the previous configuration stays in effect" in caplog.text)
            assert (await router.status())["sources"] == {"config": True, "config_map": False}
        api.delete(CONFIG_MAPS, "demo-router")
        await eventually(lambda: "it is not there" in caplog.text)
        await asyncio.sleep(0.3)  # the file has been polled meanwhile
        assert await effective() == ("auto", ["two"])
        put_config(api, {"models": [{"name": "three"}]})
        while await effective() != ("auto", ["three"]):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert (await router.status())["sources"] == {"config": True, "config_map": True}
        assert {request.query["fieldSelector"] for request in api.requests} == {"metadata.name=demo-router"}


async def test_the_mounted_file_counts_while_the_api_is_away(api: FakeApi, tmp_path: Path) -> None:
    mounted = tmp_path / "router.json"
    mounted.write_text("{}")
    put_config(api, {"models": [{"name": "one"}]})
    async with serving(wait=False, config=mounted, config_map="demo-router", cluster=api.cluster) as router:
        await api.stop()
        while (await router.status())["sources"] != {"config": True, "config_map": False}:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert (await router.status())["models"] == ["one"]
        mounted.write_text('{"models": [{"name": "mounted since"}]}')
        while (await router.status())["models"] != ["mounted since"]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await api.start()
        put_config(api, {"models": [{"name": "two"}]})
        while (await router.status())["models"] != ["two"]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert (await router.status())["sources"] == {"config": True, "config_map": True}


async def test_a_mistake_in_the_mounted_file_stops_no_router_that_has_the_api(api: FakeApi, tmp_path: Path) -> None:
    mounted = tmp_path / "router.json"
    mounted.write_text("{")
    await api.stop()
    async with serving(wait=False, config=mounted, config_map="demo-router", cluster=api.cluster) as router:
        assert (await router.client.get("/live")).status_code == 200


@pytest.mark.parametrize("content", [None, "{"])
async def test_a_config_map_without_use_leaves_what_is_mounted(
    api: FakeApi, tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    mounted = tmp_path / "router.json"
    mounted.write_text('{"models": [{"name": "mounted"}]}')
    if content is not None:
        put_config(api, content)
    async with serving(wait=False, config=mounted, config_map="demo-router", cluster=api.cluster) as router:
        await eventually(lambda: "the previous configuration stays in effect" in caplog.text)
        assert (await router.status())["models"] == ["mounted"]
