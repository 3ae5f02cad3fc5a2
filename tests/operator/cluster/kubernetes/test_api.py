"""Requests to the API server, over real sockets: what is sent, what a response means, that only the leader writes."""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client
from operator_support.apiserver import Clock, config_map, llm_service, lora_adapter

from blade_operator.cluster import Rejected
from blade_operator.cluster.kubernetes import api as module
from blade_operator.cluster.kubernetes.api import Api, ApiError
from blade_operator.cluster.kubernetes.cluster import KubernetesCluster, replacing
from blade_operator.cluster.kubernetes.event_budget import BURST, REFILL_SECONDS, EventBudget
from blade_operator.cluster.kubernetes.fence import NotLeader, WriteFence
from blade_operator.cluster.kubernetes.installations import GONE_AFTER, REMEMBERED, Installations
from blade_operator.cluster.kubernetes.root_key import root_key
from blade_operator.model.objects import Key, Object, Ref
from blade_operator.model.plan import EventRecord, Prune

LABELS = {"app.kubernetes.io/managed-by": "bladellm", "serving.bladellm.io/name": "qwen"}
METADATA = {"name": "a", "namespace": "team", "labels": LABELS, "ownerReferences": [{"uid": "0f0f"}]}
CONFIG_MAP: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": METADATA}
KEY = Key("team", "qwen")
PATH = "/api/v1/namespaces/team/configmaps/a"
Respond = Callable[[web.Request, Any], web.Response]


class _Server:
    """Records every request; responds as the test configures."""

    def __init__(self) -> None:
        self.requests: list[tuple[web.Request, Any]] = []
        self.respond: Respond = lambda request, body: web.json_response({})
        self.fence = WriteFence()
        self.fence.open()

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request, body))
        return self.respond(request, body)

    def refuse(self, status: int, message: str, **headers: str) -> None:
        said = {"kind": "Status", "status": "Failure", "reason": "Why", "message": message}
        self.respond = lambda request, body: web.json_response(said, status=status, headers=headers)


@asynccontextmanager
async def _api(server: _Server) -> AsyncIterator[Api]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    async with TestServer(app) as listening:
        configuration = client.Configuration(host=f"http://{listening.host}:{listening.port}")
        configuration.api_key["BearerToken"] = "bearer secret"
        async with Api(configuration, server.fence) as api:
            yield api


@pytest.fixture
def server() -> _Server:
    return _Server()


@pytest.fixture
async def api(server: _Server) -> AsyncIterator[Api]:
    async with _api(server) as api:
        yield api


@pytest.fixture
def cluster(api: Api) -> KubernetesCluster:
    return KubernetesCluster(api)


async def test_apply_is_a_forced_server_side_apply_and_its_response_is_known_at_once(
    server: _Server, cluster: KubernetesCluster
) -> None:
    def respond(request: web.Request, body: Any) -> web.Response:
        return web.json_response({"items": []} if request.method == "GET" else {**body, **config_map("a", 7, x="1")})

    server.respond = respond
    await cluster.apply(CONFIG_MAP)
    (found, _), (request, body) = server.requests
    assert (found.path, found.query["fieldSelector"]) == ("/api/v1/namespaces/team/configmaps", "metadata.name=a")
    assert (request.method, request.path, body) == ("PATCH", PATH, CONFIG_MAP)
    assert request.content_type == "application/apply-patch+yaml"
    assert request.query["fieldManager"] == "bladellm"
    assert request.query["force"] == "true"
    assert request.query["timeout"] == "3500ms"  # the server gives up when we do
    assert request.headers["Authorization"] == "bearer secret"
    assert cluster.cache.children(KEY)["ConfigMap"][0]["data"] == {"x": "1"}
    await cluster.apply(CONFIG_MAP)
    assert [request.method for request, _ in server.requests] == ["GET", "PATCH", "PATCH"]  # known: not fetched again


async def test_a_change_of_what_was_observed_makes_nothing_new(server: _Server, cluster: KubernetesCluster) -> None:
    cluster.cache.put({**CONFIG_MAP, **config_map("a", 7)})
    for status, message in [
        (409, "uid mismatch: the provided object specified uid uid-a, and no existing object was found"),
        (422, 'ConfigMap "a" is invalid: metadata.uid: Invalid value: "uid-a": field is immutable'),
    ]:
        server.refuse(status, message)
        await cluster.apply(CONFIG_MAP)  # its event is on the way
        request, body = server.requests[-1]
        assert (request.method, body["metadata"]["uid"]) == ("PATCH", "uid-a")
    assert "uid" not in METADATA


@pytest.mark.parametrize(
    ("metadata", "ours"),
    [
        ({}, False),
        ({"labels": {"app.kubernetes.io/managed-by": "Helm"}}, False),
        ({"labels": {**LABELS, "serving.bladellm.io/name": "other"}}, False),
        ({"ownerReferences": [{"uid": "another"}]}, False),
        ({"labels": LABELS, "ownerReferences": [{"uid": "an earlier service's"}]}, True),
        ({"ownerReferences": [{"uid": "0f0f"}]}, True),  # somebody took its labels away
    ],
)
async def test_what_belongs_to_somebody_else_is_not_taken_over(
    metadata: Object, ours: bool, server: _Server, cluster: KubernetesCluster
) -> None:
    def respond(request: web.Request, body: Any) -> web.Response:
        found = {"items": [{"metadata": {"name": "a", "namespace": "team", **metadata}}]}
        return web.json_response(found if request.method == "GET" else {**body, **config_map("a", 7)})

    server.respond = respond
    if ours:
        await cluster.apply(CONFIG_MAP)
    else:
        with pytest.raises(Rejected, match="another ConfigMap of this name is there"):
            await cluster.apply(CONFIG_MAP)
    assert [request.method for request, _ in server.requests] == ["GET", "PATCH"][: 1 + ours]


async def test_a_webhook_that_does_not_respond_is_reported_in_the_servers_words(
    server: _Server, cluster: KubernetesCluster
) -> None:
    server.refuse(500, 'Internal error occurred: failed calling webhook "policy.example": no endpoints available')
    with pytest.raises(Rejected, match="failed calling webhook"):
        await cluster.apply(CONFIG_MAP)


@pytest.mark.parametrize("status", [400, 403, 422])
async def test_a_refusal_is_reported_in_the_servers_words(
    status: int, server: _Server, cluster: KubernetesCluster
) -> None:
    server.refuse(status, 'pods "x" is forbidden: violates PodSecurity "restricted:latest"')
    with pytest.raises(Rejected, match='violates PodSecurity "restricted:latest"'):
        await cluster.apply(CONFIG_MAP)


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_other_failures_are_tried_again_and_no_sooner_than_the_server_wants(
    status: int, server: _Server, cluster: KubernetesCluster
) -> None:
    server.refuse(status, "not now", **{"Retry-After": "7"})
    with pytest.raises(ApiError, match="not now") as caught:
        await cluster.apply(CONFIG_MAP)
    assert (caught.value.status, caught.value.retry_after) == (status, 7.0)


async def test_a_server_that_is_away_is_an_error_with_status_0() -> None:
    configuration = client.Configuration(host="http://127.0.0.1:1")
    fence = WriteFence()
    fence.open()
    async with Api(configuration, fence) as api:
        with pytest.raises(ApiError, match="no response from the API server") as caught:
            await api.write("PATCH", PATH, CONFIG_MAP, kind="ConfigMap")
    assert caught.value.status == 0


async def test_without_leadership_nothing_is_sent(server: _Server, cluster: KubernetesCluster) -> None:
    cluster.cache.put({**CONFIG_MAP, **config_map("a", 7)})
    server.fence.shut()
    with pytest.raises(NotLeader):
        await cluster.apply(CONFIG_MAP)
    assert server.requests == []


async def test_leadership_lost_while_connecting_sends_no_whole_request(server: _Server) -> None:
    """The fence is checked again when the connection stands: a process may be stopped at any point before."""

    class _ShutsAfterTheFirstCheck(WriteFence):
        checks = 0

        def check(self) -> None:
            super().check()
            self.checks += 1
            self.shut()

    server.fence = fence = _ShutsAfterTheFirstCheck()
    fence.open()
    async with _api(server) as api:
        with pytest.raises(NotLeader):
            await api.write("PATCH", PATH, CONFIG_MAP, kind="ConfigMap")
    assert fence.checks == 1
    assert server.requests == []


async def test_delete_names_the_very_object_that_was_observed(server: _Server, cluster: KubernetesCluster) -> None:
    ref = Ref("ConfigMap", "team", "a")
    await cluster.delete(ref)
    assert server.requests == []  # not known: nothing to delete
    cluster.cache.put({**CONFIG_MAP, **config_map("a", 7)})
    await cluster.delete(ref)
    [(request, body)] = server.requests
    assert (request.method, request.path) == ("DELETE", PATH)
    assert body["preconditions"] == {"uid": "uid-a"}
    assert body["propagationPolicy"] == "Background"
    server.refuse(409, "the UID in the precondition does not match")
    await cluster.delete(ref)
    server.refuse(404, "not found")
    await cluster.delete(ref)
    assert cluster.cache.get(ref) is None


async def test_the_status_is_replaced_as_a_whole_and_read_back(server: _Server, cluster: KubernetesCluster) -> None:
    cluster.cache.put(llm_service(5, phase="Failed", failures=[1, 2], model={"bytes": 1, "etaSeconds": 9}))

    def merge(request: web.Request, body: Any) -> web.Response:
        return web.json_response(llm_service(6, **{k: v for k, v in body["status"].items() if v is not None}))

    server.respond = merge
    await cluster.write_status(KEY, {"phase": "Ready", "model": {"bytes": 2}})
    [(request, body)] = server.requests
    assert request.path == "/apis/serving.bladellm.io/v1alpha1/namespaces/team/llmservices/qwen/status"
    assert request.content_type == "application/merge-patch+json"
    assert body["metadata"] == {"uid": "uid-qwen"}
    assert body["status"] == {"phase": "Ready", "failures": None, "model": {"bytes": 2, "etaSeconds": None}}
    observed = await cluster.observe(KEY)
    assert observed is not None
    assert observed.service["status"]["phase"] == "Ready"


async def test_a_service_is_claimed_only_in_the_very_version_that_was_observed(
    server: _Server, cluster: KubernetesCluster
) -> None:
    cluster.cache.put(llm_service(5, phase="Ready"))
    server.respond = lambda request, body: web.json_response(llm_service(6, **body["status"]))
    assert await cluster.claim(KEY, {"phase": "Ready"}, {"phase": "Ready", "installation": "a/b"})
    [(_, body)] = server.requests
    assert body["metadata"] == {"uid": "uid-qwen", "resourceVersion": "5"}
    assert not await cluster.claim(KEY, {"phase": "Ready"}, {"installation": "c/d"})  # it is claimed by now
    assert len(server.requests) == 1
    server.refuse(409, "the object has been modified")
    assert not await cluster.claim(KEY, {"phase": "Ready", "installation": "a/b"}, {"installation": "c/d"})


async def test_a_status_that_others_write_too_is_made_again_of_theirs(
    server: _Server, cluster: KubernetesCluster
) -> None:
    """Services share the status of a LoRAAdapter."""
    cluster.cache.put(lora_adapter("law", 5))
    theirs = {**lora_adapter("law", 6), "status": {"services": ["theirs"]}}

    def respond(request: web.Request, body: Any) -> web.Response:
        if request.method == "GET":
            return web.json_response({"items": [theirs]})
        if body["metadata"]["resourceVersion"] == "5":
            return web.json_response({"kind": "Status", "reason": "Conflict", "message": "modified"}, status=409)
        return web.json_response({**lora_adapter("law", 7), "status": body["status"]})

    server.respond = respond
    ref = Ref("LoRAAdapter", "team", "law")
    await cluster.update_adapter_status(
        ref, lambda obj: {"services": [*obj.get("status", {}).get("services", ()), "ours"]}
    )
    assert [request.method for request, _ in server.requests] == ["PATCH", "GET", "PATCH"]
    request, body = server.requests[-1]
    assert request.path == "/apis/serving.bladellm.io/v1alpha1/namespaces/team/loraadapters/law/status"
    assert body["metadata"] == {"uid": "uid-law", "resourceVersion": "6"}
    assert cluster.lora_adapters("team")[0]["status"] == {"services": ["theirs", "ours"]}
    server.refuse(404, "not found")
    await cluster.update_adapter_status(ref, lambda obj: {})  # it is gone
    await cluster.update_adapter_status(Ref("LoRAAdapter", "team", "nobody"), lambda obj: {})


@pytest.mark.parametrize(
    ("age", "gone"), [(60, False), (GONE_AFTER + 60, True), (None, True), ("forbidden", False), ("odd", False)]
)
async def test_an_installation_whose_lease_has_long_expired_is_gone(server: _Server, age: Any, gone: bool) -> None:
    def respond(request: web.Request, body: Any) -> web.Response:
        if age in (None, "forbidden"):
            return web.json_response({"message": "no"}, status=404 if age is None else 403)
        assert request.path == "/apis/coordination.k8s.io/v1/namespaces/old/leases/bladellm"
        renewed = "when?" if age == "odd" else (datetime.now(UTC) - timedelta(seconds=age)).isoformat()
        return web.json_response({"spec": {"renewTime": renewed}})

    server.respond = respond
    clock = Clock()
    async with _api(server) as api:
        cluster = KubernetesCluster(api, installation="new/bladellm")
        cluster._installations = Installations(api, clock)
        cluster.cache.put(llm_service(5, installation="old/bladellm"))
        for _ in range(3):
            observed = await cluster.observe(KEY)
            assert observed is not None
            assert observed.abandoned is gone
        assert len(server.requests) == 1
        clock.now += REMEMBERED + 1
        await cluster.observe(KEY)
        assert len(server.requests) == 2
        assert not await Installations(api).is_gone("no slash")


async def test_writing_the_status_of_a_deleted_service_is_no_error(server: _Server, cluster: KubernetesCluster) -> None:
    await cluster.write_status(KEY, {"phase": "Ready"})
    assert server.requests == []
    cluster.cache.put(llm_service(5))
    server.refuse(404, "not found")
    await cluster.write_status(KEY, {"phase": "Ready"})
    assert await cluster.observe(KEY) is None


async def test_an_event_has_the_same_name_until_the_status_remembers_it(
    server: _Server, cluster: KubernetesCluster
) -> None:
    cluster.cache.put(llm_service(5))
    event = EventRecord("Warning", "CheckFailed", "no room")
    await cluster.emit(KEY, event)
    server.refuse(409, "already exists")
    await cluster.emit(KEY, event)  # started again before the status was written
    cluster.cache.put(llm_service(6))
    server.refuse(403, "the namespace is being terminated")
    await cluster.emit(KEY, event)
    bodies = [body for _, body in server.requests]
    names = [body["metadata"]["name"] for body in bodies]
    assert names[0] == names[1] != names[2]
    assert bodies[0]["involvedObject"]["uid"] == "uid-qwen"
    assert (bodies[0]["type"], bodies[0]["reason"], bodies[0]["message"]) == ("Warning", "CheckFailed", "no room")


async def test_a_service_that_flaps_has_no_more_events_than_its_budget(
    server: _Server, cluster: KubernetesCluster
) -> None:
    clock = Clock()
    cluster._event_budget = EventBudget(clock)
    other = Key("team", "other")
    for name in ("qwen", "other"):
        cluster.cache.put(llm_service(5, name=name))

    async def emitted(key: Key, times: int) -> int:
        before = len(server.requests)
        for number in range(times):
            await cluster.emit(key, EventRecord("Normal", "Flapped", str(number)))
        return len(server.requests) - before

    assert await emitted(KEY, BURST + 10) == BURST
    assert await emitted(other, 3) == 3
    clock.now += REFILL_SECONDS
    assert await emitted(KEY, 5) == 1
    clock.now += 10 * REFILL_SECONDS
    assert await emitted(KEY, 20) == 10
    clock.now += 1e6
    assert await emitted(KEY, 2 * BURST) == BURST


async def test_what_belongs_to_a_service_is_found_by_kind(cluster: KubernetesCluster) -> None:
    assert await cluster.observe(KEY) is None
    cluster.cache.put(llm_service(1))
    cluster.cache.put({**CONFIG_MAP, **config_map("a", 2)})
    cluster.cache.put({**config_map("r", 3), "kind": "Role", "apiVersion": "rbac.authorization.k8s.io/v1"})
    observed = await cluster.observe(KEY)
    assert observed is not None
    assert [obj["metadata"]["name"] for obj in observed.config_maps] == ["a"]
    assert [obj["kind"] for obj in observed.others] == ["Role"]


async def test_a_pod_is_only_annotated_and_never_made(server: _Server, cluster: KubernetesCluster) -> None:
    mark = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "team", "annotations": {"x": "y"}},
    }
    await cluster.apply(mark)
    assert server.requests == []
    cluster.cache.put({**config_map("a", 2), "kind": "Pod", "apiVersion": "v1"})
    server.respond = lambda request, body: web.json_response({**config_map("a", 3), "kind": "Pod"})
    await cluster.apply(mark)
    [(request, body)] = server.requests
    assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/team/pods/a")
    assert body["metadata"]["uid"] == "uid-a"


async def test_items_are_removed_from_the_version_that_was_observed(
    server: _Server, cluster: KubernetesCluster
) -> None:
    prune = Prune(Ref("ConfigMap", "team", "a"), ("/items/2", "/items/0"))
    await cluster.prune(prune)
    assert server.requests == []  # it is gone
    cluster.cache.put({**config_map("a", 7), "kind": "ConfigMap"})
    server.respond = lambda request, body: web.json_response({**config_map("a", 8), "kind": "ConfigMap"})
    await cluster.prune(prune)
    [(request, body)] = server.requests
    assert (request.method, request.path, request.content_type) == ("PATCH", PATH, "application/json-patch+json")
    assert body == [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "remove", "path": "/items/2"},
        {"op": "remove", "path": "/items/0"},
    ]
    assert cluster.cache.version(prune.ref) == 8
    for status, message in ((409, "modified"), (422, "the server rejected our request due to an error in our request")):
        server.refuse(status, message)
        await cluster.prune(prune)
    server.refuse(403, "forbidden")
    with pytest.raises(Rejected, match="forbidden"):
        await cluster.prune(prune)


async def test_a_secret_is_only_made(server: _Server, cluster: KubernetesCluster) -> None:
    secret = {**config_map("token", 0), "kind": "Secret", "apiVersion": "v1"}
    await cluster.apply(secret)
    server.refuse(409, "already exists")
    await cluster.apply(secret)
    assert [(request.method, request.path) for request, _ in server.requests] == [
        ("POST", "/api/v1/namespaces/team/secrets")
    ] * 2


async def test_a_secret_is_replaced_by_a_write_that_shows_nothing_of_it(
    server: _Server, cluster: KubernetesCluster
) -> None:
    secret = {**config_map("token", 0), "kind": "Secret", "apiVersion": "v1"}
    await cluster.replace(secret)
    server.respond = lambda request, body: web.json_response(
        {"message": "not found"}, status=404 if request.method == "PUT" else 201
    )
    await cluster.replace(secret)  # somebody has deleted it
    secrets = "/api/v1/namespaces/team/secrets"
    assert [(request.method, request.path) for request, _ in server.requests] == [
        ("PUT", f"{secrets}/token"),
        ("PUT", f"{secrets}/token"),
        ("POST", secrets),
    ]
    server.refuse(403, "forbidden")
    with pytest.raises(Rejected, match="forbidden"):
        await cluster.replace(secret)


async def test_a_field_that_the_kind_does_not_have_is_a_refusal(server: _Server, cluster: KubernetesCluster) -> None:
    server.refuse(500, "failed to create typed patch object: .spec.x: field not declared in schema")
    with pytest.raises(Rejected, match="field not declared"):
        await cluster.apply(CONFIG_MAP)


async def test_the_root_key_is_made_once(server: _Server, api: Api) -> None:
    kept: dict[str, Any] = {}

    def respond(request: web.Request, body: Any) -> web.Response:
        if request.method == "POST":
            assert request.path == "/api/v1/namespaces/system/secrets"
            kept.update(body)
            return web.json_response(body, status=201)
        if not kept:
            return web.json_response({"message": "not found"}, status=404)
        return web.json_response(kept)

    server.respond = respond
    first = await root_key(api, "system")
    assert len(first) == 32
    assert await root_key(api, "system") == first
    assert [request.method for request, _ in server.requests] == ["GET", "POST", "GET"]
    kept["data"] = {}
    with pytest.raises(ValueError, match="delete it and a new one is made"):
        await root_key(api, "system")


def test_a_merge_patch_leaves_nothing_of_what_was_before() -> None:
    before = {"a": 1, "b": {"c": 1, "d": [1, 2]}, "e": "x"}
    assert replacing(before, {"b": {"d": [3]}, "e": {"f": 1}}) == {"a": None, "b": {"c": None, "d": [3]}, "e": {"f": 1}}
    assert replacing(None, {"a": {}}) == {"a": {}}


async def test_a_response_that_is_not_json_is_an_error(server: _Server, api: Api) -> None:
    server.respond = lambda request, body: web.Response(text="<html>")
    with pytest.raises(ApiError, match="no response from the API server"):
        await api.get(PATH, kind="ConfigMap")
    with pytest.raises(ApiError, match="no response from the API server"):
        await api.write("PATCH", PATH, CONFIG_MAP, kind="ConfigMap")


async def test_every_request_expects_the_certificate_that_the_kubeconfig_names() -> None:
    """The pool sees to it: kopf makes its requests itself."""
    configuration = client.Configuration(host="https://127.0.0.1")
    configuration.tls_server_name = "api.internal"
    expected: list[str | None] = []

    async def send(request: Any) -> Any:
        expected.append(request.server_hostname)
        return types.SimpleNamespace(status=200)

    pool = module.ConnectionPool(configuration)
    [name_server] = pool.pool_manager._middlewares
    request = types.SimpleNamespace(server_hostname=None)
    await name_server(request, send)  # type: ignore[arg-type]
    await pool.close()
    assert expected == ["api.internal"]


async def test_a_list_may_be_of_metadata_only(server: _Server, api: Api) -> None:
    server.respond = lambda request, body: web.Response(text='{"items": null}')
    assert await api.read(PATH, {"limit": "1"}, kind="ConfigMap", accept=module.METADATA) == b'{"items": null}'
    [(request, _)] = server.requests
    assert request.headers["Accept"] == module.METADATA
    assert request.headers["User-Agent"] == "bladellm-operator"
