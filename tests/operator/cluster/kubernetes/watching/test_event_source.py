"""kopf as the event source: nothing is missed, whatever happens to lists and watches, and nothing is written."""

from __future__ import annotations

import asyncio
import threading
import time
import types
import urllib.error
import urllib.request
from collections.abc import AsyncIterator

import kopf
import pytest
from kubernetes.aio import client
from kubernetes.aio.config import ConfigException
from operator_support.apiserver import EXPIRED, FakeApiServer, config_map, fake_api_server, llm_service, lora_adapter
from operator_support.local import until
from operator_support.watching import watching

from blade_operator import backoff, metrics
from blade_operator.cluster.kubernetes.kinds import KINDS, WATCHED
from blade_operator.cluster.kubernetes.watching import event_source, kopf_session, kopf_settings, supervisor, sweep
from blade_operator.cluster.kubernetes.watching.scopes import Scope
from blade_operator.model.objects import Key

CONFIG_MAPS = "/api/v1/configmaps"
ROLES = "/apis/rbac.authorization.k8s.io/v1/roles"


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with fake_api_server() as server:
        yield server
        assert server.writes == []  # neither an annotation nor a finalizer, nor anything else


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "PATIENCE", 0.3)
    monkeypatch.setattr(kopf_settings, "WATCH_AT_MOST_EVERY", 0.05)


def counted(metric: object, *labels: str) -> float:
    found = metric.labels(*labels) if labels else metric  # type: ignore[attr-defined]
    value: float = found._value.get()
    return value


async def test_a_list_comes_in_pages_and_the_watch_goes_on_from_its_version(server: FakeApiServer) -> None:
    server.page = 1
    server.put("ConfigMap", config_map("a", 0))
    server.put("ConfigMap", config_map("b", 0))
    async with watching(server) as watched:
        await watched.synced()
        server.put("ConfigMap", config_map("c", 0))
        server.put("ConfigMap", config_map("a", 0, x="1"))
        server.delete("ConfigMap", "b")
        await until(lambda: watched.data() == {"a": {"x": "1"}, "c": {}})
        server.send("ConfigMap", "BOOKMARK", {"kind": "ConfigMap", "metadata": {"resourceVersion": "120"}})
        server.version = 120
        server.reset_watches()
        await until(lambda: (CONFIG_MAPS, "120") in server.watches)
        server.put("ConfigMap", config_map("d", 0))
        await until(lambda: watched.data() == {"a": {"x": "1"}, "c": {}, "d": {}})
    queries = [request.query for request in server.requests if request.path == CONFIG_MAPS]
    assert any(query.get("continue") for query in queries)
    assert [version for path, version in server.watches if path == CONFIG_MAPS] == ["102", "120"]
    assert all(query["labelSelector"] == "app.kubernetes.io/managed-by=bladellm" for query in queries)
    assert all("labelSelector" not in r.query for r in server.requests if r.path.endswith("/llmservices"))


@pytest.mark.parametrize("how", ["event", "status"])
async def test_when_history_is_gone_the_list_is_compared_so_that_deletions_are_seen(
    how: str, server: FakeApiServer
) -> None:
    server.put("ConfigMap", config_map("a", 0))
    server.put("ConfigMap", config_map("b", 0))
    restarts, runs = counted(metrics.WATCH_RESTARTS, "ConfigMap"), counted(metrics.EVENT_SOURCE_RESTARTS)
    async with watching(server) as watched:
        await watched.synced()
        server.delete("ConfigMap", "a", quiet=True)
        server.put("ConfigMap", config_map("c", 0), quiet=True)
        if how == "event":
            server.send("ConfigMap", "ERROR", EXPIRED)
        else:
            server.once[f"watch {CONFIG_MAPS}"].append((410, "too old resource version"))
            server.reset_watches("ConfigMap")
        await until(lambda: set(watched.data()) == {"b", "c"})
        assert len(watched.notified) == 4  # a, b; then c, and that a is gone: the same b triggers nothing
        await until(lambda: server.listed("ConfigMap") == 2 and server.listed("Pod") == (1 if how == "event" else 2))
    if how == "event":  # kopf lists that kind again ...
        assert counted(metrics.WATCH_RESTARTS, "ConfigMap") == restarts + 1
        assert server.listed("Pod") == 1
    else:  # ... and ends, so that the supervisor runs it anew
        assert counted(metrics.EVENT_SOURCE_RESTARTS) == runs + 1
        assert server.listed("Pod") == 2


async def test_a_deletion_during_a_broken_watch_is_seen_when_nothing_is_left_to_list(server: FakeApiServer) -> None:
    """No event reports that an empty list has come."""
    server.put("ConfigMap", config_map("a", 0))
    async with watching(server) as watched:
        await watched.synced()
        server.broken = True
        server.reset_watches()
        server.delete("ConfigMap", "a")
        await until(lambda: server.listed("ConfigMap") > 1)
        server.broken = False
        await until(lambda: watched.data() == {})
    assert watched.notified == [Key("team", "qwen")] * 2


async def test_a_continue_token_that_expired_starts_the_list_again(server: FakeApiServer) -> None:
    server.page = 1
    for name in "abc":
        server.put("ConfigMap", config_map(name, 0))
    server.once[f"continue {CONFIG_MAPS}"].append((410, "The provided continue parameter is too old"))
    runs = counted(metrics.EVENT_SOURCE_RESTARTS)
    async with watching(server) as watched:
        await watched.synced()
        assert set(watched.data()) == {"a", "b", "c"}
    assert counted(metrics.EVENT_SOURCE_RESTARTS) == runs + 1


async def test_an_error_in_a_watch_runs_kopf_again_and_keeps_what_is_known(server: FakeApiServer) -> None:
    server.put("ConfigMap", config_map("a", 0))
    runs = counted(metrics.EVENT_SOURCE_RESTARTS)
    async with watching(server) as watched:
        await watched.synced()
        changes = watched.cluster.changes()
        server.put("LLMService", llm_service(0))
        assert await asyncio.wait_for(anext(changes), 10) == Key("team", "qwen")
        server.send("ConfigMap", "ERROR", {"kind": "Status", "code": 500, "message": "etcd has no leader"})
        await until(lambda: counted(metrics.EVENT_SOURCE_RESTARTS) == runs + 1)
        assert set(watched.data()) == {"a"}
        assert watched.scopes.unsynced == []  # nothing was lost, so nothing has to be waited for
        await until(lambda: server.listed("ConfigMap") == 2)
        server.put("ConfigMap", config_map("b", 0))
        await until(lambda: set(watched.data()) == {"a", "b"})
        assert await asyncio.wait_for(anext(changes), 10) == Key("team", "qwen")  # of the same change queue
        assert watched.cleaned_up == []  # the lease is released at the end only
    assert watched.cleaned_up == [True]


async def test_a_connection_that_breaks_goes_on_where_it_was(server: FakeApiServer) -> None:
    async with watching(server) as watched:
        await watched.synced()
        server.put("ConfigMap", config_map("a", 0))
        await until(lambda: set(watched.data()) == {"a"})
        server.once[f"watch {CONFIG_MAPS}"].append((503, "connection refused"))
        server.reset_watches()
        await until(lambda: len([path for path, _ in server.watches if path == CONFIG_MAPS]) == 3)
        server.put("ConfigMap", config_map("b", 0))
        await until(lambda: set(watched.data()) == {"a", "b"})
        assert server.listed("ConfigMap") == 1
    assert [version for path, version in server.watches if path == CONFIG_MAPS] == ["100", "101", "101"]


async def test_while_the_server_fails_the_pauses_grow_and_what_is_known_stays(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def delay(failures: int) -> float:
        waits.append(min(backoff.CAP, backoff.BASE * 2.0**failures))
        return waits[-1] / 100

    monkeypatch.setattr(supervisor.backoff, "delay", delay)
    server.put("ConfigMap", config_map("a", 0))
    async with watching(server) as watched:
        await watched.synced()
        waits.clear()
        server.refused[CONFIG_MAPS] = (500, "etcd has no leader")
        server.send("ConfigMap", "ERROR", {"kind": "Status", "code": 500, "message": "etcd has no leader"})
        await until(lambda: len(waits) >= 7)
        assert set(watched.data()) == {"a"}
        del server.refused[CONFIG_MAPS]
        server.put("ConfigMap", config_map("b", 0))
        await until(lambda: set(watched.data()) == {"a", "b"})
    assert waits[0] < 1 < waits[3] < waits[6]
    assert min(backoff.delay(30), supervisor.LONGEST_PAUSE) <= supervisor.LONGEST_PAUSE * 1.2


async def test_a_watch_waits_as_long_as_retry_after_says(server: FakeApiServer) -> None:
    async with watching(server) as watched:
        await watched.synced()
        server.once[f"watch {CONFIG_MAPS}"].append((429, "slow down"))
        server.reset_watches()
        await until(lambda: len([path for path, _ in server.watches if path == CONFIG_MAPS]) == 2)
        refused = time.monotonic()
        await until(lambda: len([path for path, _ in server.watches if path == CONFIG_MAPS]) == 3)
        assert time.monotonic() - refused > 0.9  # Retry-After: 1


async def test_a_kind_that_is_not_there_yet_is_watched_once_it_is(server: FakeApiServer) -> None:
    services = "/apis/serving.bladellm.io/v1alpha1/llmservices"
    server.refused[services] = (404, "the server could not find the requested resource")
    server.put("LLMService", llm_service(0))
    async with watching(server) as watched:
        await until(lambda: watched.scopes.unsynced == ["llmservices"])
        assert list(watched.scopes.skipped) == ["llmservices"]
        assert counted(metrics.SKIPPED, "", "LLMService") == 1
        del server.refused[services]
        await watched.synced()
        assert watched.cache.services() == [Key("team", "qwen")]
        assert watched.scopes.skipped == {}


async def test_a_namespace_without_lora_adapters_is_served(server: FakeApiServer) -> None:
    """Their CRD, or the right to list them, may be missing after an upgrade; once they are there they are watched."""
    adapters = "/apis/serving.bladellm.io/v1alpha1/namespaces/team/loraadapters"
    server.refused[adapters] = (403, "loraadapters is forbidden")
    server.put("LLMService", llm_service(0))
    server.put("LoRAAdapter", lora_adapter("law", 0))
    server.put("LoRAAdapter", lora_adapter("law", 0, namespace="other"))
    async with watching(server, "team", "other") as watched:
        await watched.synced()
        assert watched.scopes.served_namespaces == ["team", "other"]
        assert list(watched.scopes.skipped) == ["loraadapters in team"]
        observed = await watched.cluster.observe(Key("team", "qwen"))
        assert observed is not None
        assert observed.lora_adapters == ()
        restarts = counted(metrics.EVENT_SOURCE_RESTARTS)
        await asyncio.sleep(0.5)
        assert counted(metrics.EVENT_SOURCE_RESTARTS) == restarts
        assert not watched.cache.lora_adapters("other", 10), "a kind is watched in all namespaces, or in none"
        del server.refused[adapters]
        await until(lambda: bool(watched.cache.lora_adapters("other", 10)))
        await until(lambda: bool(watched.cache.lora_adapters("team", 10)))
        assert watched.scopes.skipped == {}


def test_a_healthy_server_ends_a_watch_before_it_counts_as_dead() -> None:
    assert kopf.OperatorSettings().watching.inactivity_timeout > kopf_settings.WATCH_SECONDS


async def test_a_server_that_ends_every_watch_at_once_is_not_flooded(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kopf_settings, "WATCH_AT_MOST_EVERY", 0.4)
    server.end_watches = True
    async with watching(server) as watched:
        await watched.synced()
        before = len(server.watches)
        await asyncio.sleep(1)
        assert len(server.watches) - before <= 3 * len(WATCHED)


async def test_a_kind_that_may_not_be_listed_is_named_and_its_namespace_skipped(server: FakeApiServer) -> None:
    server.refused[ROLES.replace("roles", "namespaces/team/roles")] = (403, "roles is forbidden")
    async with watching(server, "team", "other") as watched:
        assert len(watched.scopes.unsynced) == 2 * len(WATCHED)
        await watched.synced()
        assert watched.scopes.skipped == {"roles in team": "roles is forbidden"}
        assert watched.scopes.served_namespaces == ["other"]
        assert counted(metrics.SKIPPED, "team", "Role") == 1


async def test_a_namespace_that_is_deleted_never_stops_the_other(server: FakeApiServer) -> None:
    for namespace in ("team", "other"):
        server.put("LLMService", llm_service(0, namespace=namespace))
        server.put("ConfigMap", config_map("a", 0, namespace=namespace))
    async with watching(server, "team", "other") as watched:
        await watched.synced()
        assert len(watched.cache.services()) == 2
        server.delete_namespace("team")
        await until(lambda: watched.scopes.served_namespaces == ["other"])
        assert watched.cache.services() == [Key("other", "qwen")]
        server.put("ConfigMap", config_map("b", 0, namespace="other"))
        await until(lambda: set(watched.data(Key("other", "qwen"))) == {"a", "b"})
    # The same after a restart.
    async with watching(server, "team", "other") as watched:
        await watched.synced()
        assert watched.cache.services() == [Key("other", "qwen")]
        changes = watched.cluster.changes()
        assert await asyncio.wait_for(anext(changes), 10) == Key("other", "qwen")
        server.put("ConfigMap", config_map("c", 0, namespace="other"))
        assert await asyncio.wait_for(anext(changes), 10) == Key("other", "qwen")


async def test_a_namespace_comes_back_whole(server: FakeApiServer) -> None:
    """Before its children are listed, a service would be created again."""
    for namespace in ("team", "other"):
        server.put("LLMService", llm_service(0, namespace=namespace))
    server.put("ConfigMap", config_map("a", 0))
    secrets = "/api/v1/namespaces/team/configmaps"
    server.refused[secrets] = (403, "configmaps is forbidden")
    async with watching(server, "team", "other") as watched:
        await watched.synced()
        changes = watched.cluster.changes()
        assert await asyncio.wait_for(anext(changes), 10) == Key("other", "qwen")
        following = asyncio.ensure_future(anext(changes))
        del server.refused[secrets]
        assert await asyncio.wait_for(following, 10) == Key("team", "qwen")
        while (observed := await watched.cluster.observe(Key("team", "qwen"))) is None:
            assert await asyncio.wait_for(anext(changes), 10) == Key("team", "qwen")
        assert [obj["metadata"]["name"] for obj in observed.config_maps] == ["a"]
        assert watched.scopes.unsynced == []


async def test_a_lasting_403_of_a_whole_kind_stops_no_other_kind(server: FakeApiServer) -> None:
    server.put("ConfigMap", config_map("a", 0))
    async with watching(server) as watched:
        await watched.synced()
        server.refused[ROLES] = (403, "roles is forbidden")
        server.reset_watches()
        await until(lambda: list(watched.scopes.skipped) == ["roles"])
        assert watched.scopes.unsynced == []  # it has been seen
        server.put("ConfigMap", config_map("b", 0))
        await until(lambda: set(watched.data()) == {"a", "b"})
        del server.refused[ROLES]
        await until(lambda: not watched.scopes.skipped)


async def test_a_namespace_is_not_tried_again_while_one_of_its_kinds_is_refused(server: FakeApiServer) -> None:
    config_maps, roles = (path.replace("/v1/", "/v1/namespaces/team/") for path in (CONFIG_MAPS, ROLES))
    server.refused |= {config_maps: (403, "configmaps is forbidden"), roles: (403, "roles is forbidden")}
    async with watching(server, "team", "other") as watched:
        await watched.synced()
        del server.refused[roles]
        before = len([r for r in server.requests if r.path == roles])
        await until(lambda: len([r for r in server.requests if r.path == roles]) > before + 1)
        assert server.listed("Role", "other") == 1  # the other was not disturbed
        del server.refused[config_maps]
        await until(lambda: not watched.scopes.skipped)
        await watched.synced()
        assert server.listed("Role", "other") == 2


async def test_a_namespace_that_may_be_listed_and_not_watched_is_skipped(server: FakeApiServer) -> None:
    server.put("ConfigMap", config_map("a", 0, namespace="other"))
    config_maps = CONFIG_MAPS.replace("/v1/", "/v1/namespaces/team/")
    server.unwatchable[config_maps] = (403, 'cannot watch resource "configmaps"')
    runs = counted(metrics.EVENT_SOURCE_RESTARTS)
    async with watching(server, "team", "other", backoffs=(60.0,)) as watched:
        await until(lambda: watched.scopes.served_namespaces == ["other"])
        await watched.synced()
        assert watched.scopes.skipped == {"configmaps in team": 'cannot watch resource "configmaps"'}
        server.put("ConfigMap", config_map("b", 0, namespace="other"))
        await until(lambda: set(watched.data(Key("other", "qwen"))) == {"a", "b"})
        assert counted(metrics.EVENT_SOURCE_RESTARTS) == runs + 1  # and then no more
        server.unwatchable.clear()
        await until(lambda: not watched.scopes.skipped)
        server.put("ConfigMap", config_map("c", 0))
        await until(lambda: set(watched.data()) == {"c"})


async def test_a_run_that_does_not_end_when_it_is_stopped_is_given_up(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs before its clean-up, which would have been given up, too."""
    operate, hung = kopf.operator, threading.Event()

    async def hang(**arguments: object) -> None:
        monkeypatch.setattr(event_source.kopf, "operator", operate)
        await asyncio.to_thread(hung.wait)

    monkeypatch.setattr(event_source, "STOP_SECONDS", 0.1)
    monkeypatch.setattr(event_source.kopf, "operator", hang)
    async with watching(server) as watched:
        await until(lambda: kopf.operator is operate)
        watched.source.stop("a new certificate")
        await watched.synced()
    hung.set()


async def test_credentials_that_are_not_there_now_are_looked_for_again(server: FakeApiServer) -> None:
    """As of a kubeconfig whose exec plugin fails."""
    broken = [True]

    def renew(_: object) -> None:
        if broken:
            raise ConfigException("exec: process returned 1")

    server.configuration.refresh_api_key_hook = renew
    async with watching(server) as watched:
        await asyncio.sleep(0.3)
        assert server.requests == []
        broken.clear()
        await watched.synced()


async def test_kopf_goes_through_the_proxy_of_the_kubeconfig(server: FakeApiServer) -> None:
    server.configuration.proxy, server.configuration.host = server.configuration.host, "http://api.invalid"
    async with watching(server) as watched:
        await watched.synced()
    assert {request.headers["Host"] for request in server.requests} == {"api.invalid"}


async def test_what_another_kopf_left_on_an_object_stays(server: FakeApiServer) -> None:
    """kopf takes off a finalizer that it believes to be its own."""
    service = llm_service(0)
    service["metadata"] |= {
        "finalizers": ["kopf.zalando.org/KopfFinalizerMarker"],
        "annotations": {"kopf.zalando.org/last-handled-configuration": "{}"},
    }
    server.put("LLMService", service)
    async with watching(server) as watched:
        await watched.synced()
        service["metadata"]["deletionTimestamp"] = "2026-11-21T20:00:00Z"
        server.put("LLMService", service)
        await until(lambda: "deletionTimestamp" in (watched.known("LLMService", "qwen") or {})["metadata"])
        server.delete("LLMService", "qwen")
        await until(lambda: watched.cache.services() == [])
    assert server.writes == []


async def test_credentials_are_read_for_every_request(server: FakeApiServer) -> None:
    tokens = iter(range(10**6))

    def renew(configuration: object) -> None:
        server.configuration.api_key["BearerToken"] = configuration.api_key["BearerToken"] = f"bearer {next(tokens)}"  # type: ignore[attr-defined]

    server.configuration.refresh_api_key_hook = renew
    async with watching(server) as watched:
        await watched.synced()
    said = [request.headers["Authorization"] for request in server.requests]
    assert len(set(said)) == len(said) > 3 * len(WATCHED)


async def test_refused_credentials_are_not_tried_again_at_once(server: FakeApiServer) -> None:
    async with watching(server) as watched:
        await watched.synced()
        runs, before = counted(metrics.EVENT_SOURCE_RESTARTS), len(server.requests)
        for kind in WATCHED:
            server.refused[kind.path()] = (401, "Unauthorized")
        server.reset_watches()
        await until(lambda: counted(metrics.EVENT_SOURCE_RESTARTS) >= runs + 2)
        assert len(server.requests) - before < 100
        server.refused.clear()
        server.put("ConfigMap", config_map("b", 0))
        await until(lambda: set(watched.data()) == {"b"})


async def test_the_liveness_endpoint_is_kopfs_and_probes_the_control_loop(server: FakeApiServer) -> None:
    async def get(url: str) -> int:
        try:
            return (await asyncio.to_thread(urllib.request.urlopen, url, timeout=5)).status  # type: ignore[no-any-return]
        except urllib.error.HTTPError as error:
            return error.code

    async with watching(server) as watched:
        url = await until(lambda: watched.source.liveness_url)
        await watched.synced()
        watched.wrong = "a reconcile has taken 200 s"
        assert await get(url) == 500
        watched.wrong = ""
        assert await get(url) == 200
    assert watched.source.liveness_url is None


async def test_a_session_that_cannot_be_opened_is_tried_again(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a certificate's file is not there: kopf would wait for ever for a login handler that fails."""
    open_pool, failures = kopf_session.ConnectionPool, [FileNotFoundError("ca.crt")]

    def fail_once(*arguments: object) -> object:
        if failures:
            raise failures.pop()
        return open_pool(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(kopf_session, "ConnectionPool", fail_once)
    restarts = counted(metrics.EVENT_SOURCE_RESTARTS)
    async with watching(server) as watched:
        await watched.synced()
    assert counted(metrics.EVENT_SOURCE_RESTARTS) == restarts + 1


async def test_a_kind_that_discovery_did_not_know_is_watched_later(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf goes on without it, and looks for it no more in that run."""
    monkeypatch.setattr(supervisor, "STALLED", 0.5)
    server.undiscovered.add("configmaps")
    server.put("ConfigMap", config_map("a", 0))
    async with watching(server) as watched:
        await until(lambda: watched.scopes.unsynced == ["configmaps"])
        server.undiscovered.clear()
        await watched.synced()
        assert set(watched.data()) == {"a"}


async def test_a_check_without_a_response_changes_nothing(server: FakeApiServer) -> None:
    config_maps = CONFIG_MAPS.replace("/v1/", "/v1/namespaces/team/")
    server.refused[config_maps] = (403, "configmaps is forbidden")
    async with watching(server, "team", "other") as watched:
        await watched.synced()
        server.refused[config_maps] = (500, "etcd has no leader")
        before = len([r for r in server.requests if r.path == config_maps])
        await until(lambda: len([r for r in server.requests if r.path == config_maps]) > before + 1)
        assert watched.scopes.served_namespaces == ["other"]
        assert server.listed("Role", "other") == 1  # the other was not disturbed
        server.refused.clear()
        await until(lambda: not watched.scopes.skipped)


async def test_a_server_below_a_path_is_recognised() -> None:
    configuration = client.Configuration(host="https://rancher.example.com/k8s/clusters/c-1/")
    scope, listed = Scope(KINDS["ConfigMap"], None), list[Scope]()
    session = kopf_session.KopfSession(configuration, [scope], listed.append, lambda _: None)
    response = types.SimpleNamespace(status=200)

    async def send(request: object) -> object:
        return response

    for query in ({"limit": "100"}, {"watch": "true"}):
        url = types.SimpleNamespace(path=f"/k8s/clusters/c-1{scope.path}", query=query)
        request = types.SimpleNamespace(url=url, headers={})
        assert await session._send(request, send) is response  # type: ignore[arg-type]
    await session.close()
    assert listed == [scope]
