"""The API over TLS: to the API server's front proxy, for users who may read what they ask for, and to nobody else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from operator_support.aggregation import SERVER_NAME, Aggregation, aggregation
from operator_support.local import until
from operator_support.mini_cluster import service
from operator_support.tls import Authority

from blade_operator.external_metrics import listener, server
from blade_operator.external_metrics.catalog import METRICS
from blade_operator.external_metrics.samples import Samples
from blade_operator.fleet import FleetReport
from blade_operator.model.objects import Key, Object
from blade_operator.model.observed import Observed
from blade_protocol.signals import Percentiles, RouterSignals, ServiceSignals

API = "/apis/external.metrics.k8s.io/v1beta1"
QUEUED = f"{API}/namespaces/team/bladellm_queued_requests"
NAME = "serving.bladellm.io/name"
SERVICES = {
    Key("team", "qwen"): {"tier": "gold"},
    Key("team", "llama"): {"tier": "gold"},
    Key("team", "broken"): {"tier": "lead"},
    **{Key("many", f"s{number}"): {} for number in range(server.MOST_SERVICES + 1)},
}


async def _observe(key: Key) -> Observed | None:
    return Observed(service(name=key.name, namespace=key.namespace, labels=SERVICES[key]), pods=({"key": key},))


async def _query(pods: Iterable[Object]) -> FleetReport:
    [key] = [pod["key"] for pod in pods]
    if key.name == "broken":
        return FleetReport()
    queue = ServiceSignals(service=key.name, queued_requests=5 if key.name == "qwen" else 2)
    ttft = Percentiles(p90=0.35)
    return FleetReport(signals={"r": RouterSignals(started=1, time=2, services=(queue,), ttft_seconds=ttft)})


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Aggregation]:
    monkeypatch.setattr(server, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr("blade_operator.external_metrics.samples.measured", _measured)
    services = [(key, {"metadata": {"name": key.name, "labels": labels}}) for key, labels in SERVICES.items()]
    async with aggregation(tmp_path, Samples(_observe, _query, lambda observed: False), services) as world:
        await until(lambda: world.served._front_proxy)
        yield world


def _measured(pods: Iterable[Object], report: FleetReport) -> Any:
    from blade_operator.external_metrics.catalog import Measured

    return Measured(tuple(report.signals.values()), silent_routers=() if report.signals else ("broken-router-x",))


async def test_a_value_as_a_horizontal_pod_autoscaler_asks_for_it(served: Aggregation) -> None:
    headers = {"X-Remote-Group": "system:serviceaccounts", "X-Remote-Extra-Scopes%2fa": "some"}
    async with served.session() as session:
        code, body = await served.get(session, f"{QUEUED}?labelSelector=serving.bladellm.io%2Fname%3Dqwen", **headers)
    assert code == 200
    [item] = body.pop("items")
    assert body == {
        "kind": "ExternalMetricValueList",
        "apiVersion": "external.metrics.k8s.io/v1beta1",
        "metadata": {},
    }
    assert abs(datetime.fromisoformat(item.pop("timestamp")).timestamp() - datetime.now().timestamp()) < 60
    assert item == {
        "metricName": "bladellm_queued_requests",
        "metricLabels": {NAME: "qwen"},
        "window": 60,
        "value": "5",
    }
    assert served.reviews.reviews == [
        {
            "user": "system:serviceaccount:kube-system:horizontal-pod-autoscaler",
            "groups": ["system:serviceaccounts"],
            "extra": {"scopes/a": ["some"]},
            "resourceAttributes": {
                "namespace": "team",
                "verb": "list",
                "group": "external.metrics.k8s.io",
                "version": "v1beta1",
                "resource": "bladellm_queued_requests",
            },
        }
    ]


async def test_as_kedas_scaler_asks_for_it(served: Aggregation) -> None:
    """A GET of ``url`` with a bearer token, which the API server turned into a user; then ``items.0.value``, a number
    or a quantity."""
    path = "/apis/metrics.serving.bladellm.io/v1beta1/namespaces/team/bladellm_ttft_p90_seconds"
    async with served.session() as session:
        code, body = await served.get(session, f"{path}?labelSelector={NAME}=qwen")
    assert (code, body["apiVersion"], body["items"][0]["value"]) == (
        200,
        "metrics.serving.bladellm.io/v1beta1",
        "350m",
    )
    assert served.reviews.reviews[0]["resourceAttributes"]["group"] == "metrics.serving.bladellm.io"


async def test_selectors_choose_services_by_name_and_by_their_labels(served: Aggregation) -> None:
    async with served.session() as session:

        async def names(selector: str) -> list[tuple[str, str]]:
            code, body = await served.get(session, f"{QUEUED}?labelSelector={selector}")
            assert code == 200, body
            return [(item["metricLabels"][NAME], item["value"]) for item in body["items"]]

        assert await names("tier=gold") == [("llama", "2"), ("qwen", "5")]
        assert await names(f"tier=gold,{NAME}!%3Dllama") == [("qwen", "5")]
        assert await names(f"{NAME} in (llama,qwen),tier") == [("llama", "2"), ("qwen", "5")]


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        (f"{API}/namespaces/team/cpu", 404, f"there is no metric 'cpu'; there are {', '.join(METRICS)}"),
        (f"{QUEUED}?labelSelector={NAME}=qwn", 404, f"no LLMService in namespace team has labels {NAME}=qwn"),
        (f"{API}/namespaces/empty/bladellm_queued_requests", 404, "no LLMService in namespace empty has labels (any)"),
        (f"{QUEUED}?labelSelector=a in b", 400, "label selector: 'a in b' is not KEY=VALUE"),
        (f"{QUEUED}?labelSelector={NAME}=broken", 503, "of LLMService team/broken: no response from router broken-"),
        # Not the sum of those that did respond.
        (QUEUED, 503, "of LLMService team/broken: no response from router broken-router-x"),
        (f"{API}/namespaces/many/bladellm_queued_requests", 400, "65 LLMServices in namespace many have labels (any)"),
        (f"{API}/namespaces/secret/bladellm_queued_requests", 403, 'cannot list resource "bladellm_queued_requests"'),
        (f"{API}/namespaces/secret/cpu", 403, 'cannot list resource "cpu" in API group "external.metrics.k8s.io"'),
        ("/apis/external.metrics.k8s.io/v1", 404, "there is no /apis/external.metrics.k8s.io/v1"),
        ("/apis/apps/v1/namespaces/team/deployments", 404, "there is no /apis/apps"),
        ("/openapi/v2", 404, "there is no /openapi/v2"),
        ("/", 404, "there is no /"),
    ],
)
async def test_what_is_refused_and_why(served: Aggregation, path: str, code: int, words: str) -> None:
    served.reviews.forbidden = {"secret"}
    async with served.session() as session:
        status, body = await served.get(session, path)
    assert (status, body["kind"], body["code"]) == (code, "Status", code)
    assert words in body["message"]


async def test_discovery(served: Aggregation) -> None:
    async with served.session() as session:
        code, body = await served.get(session, API)
        assert (code, body["kind"], len(body["resources"])) == (200, "APIResourceList", len(METRICS))
        assert (await served.get(session, f"{API}/"))[0] == 200
        assert (await served.get(session, "/apis"))[1]["kind"] == "APIGroupList"
        assert (await served.get(session, "/apis/external.metrics.k8s.io"))[1]["kind"] == "APIGroup"
        async with session.post(QUEUED, data=b"x" * 100, server_hostname=SERVER_NAME) as response:
            assert (response.status, (await response.json())["reason"]) == (405, "MethodNotAllowed")
    assert served.reviews.reviews == []


async def test_nobody_but_the_front_proxy_is_let_in(served: Aggregation, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger", "front-proxy-ca")
    wrong = [stranger.client("front-proxy"), served.authority.client("front-proxy", "serverAuth"), None]
    for certificate in wrong:
        async with served.session(certificate, anonymous=certificate is None) as session:
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await served.get(session, API)
    async with served.session(served.authority.client("kubelet")) as session:
        code, body = await served.get(session, API)
        assert code == 401
        assert body["message"] == "the client certificate is 'kubelet''s, not the API server's front proxy's"
    async with served.session() as session:
        del session.headers["X-Remote-User"]
        for headers in ({}, {"X-Remote-User": ""}, {"X-Remote-Group": "system:masters"}):
            code, body = await served.get(session, QUEUED, **headers)
            assert (code, body["message"]) == (401, "the API server's front proxy names no user")
    assert served.reviews.reviews == []


async def test_without_the_api_servers_word_nobody_reads_anything(served: Aggregation) -> None:
    served.reviews.away = True
    async with served.session() as session:
        code, body = await served.get(session, f"{QUEUED}?labelSelector={NAME}=qwen")
        assert (code, body["message"]) == (503, "etcd is away")
        served.reviews.away = False
        assert (await served.get(session, f"{QUEUED}?labelSelector={NAME}=qwen"))[0] == 200


async def test_another_certificate_and_another_authority_are_used_without_a_restart(
    served: Aggregation, tmp_path: Path
) -> None:
    before = served.authority
    async with served.session() as old:
        assert (await served.get(old, API))[0] == 200
        served.serving = Authority(tmp_path / "serving2", "serving")
        served.serving.server(served.certificate, SERVER_NAME)
        served.authority = Authority(tmp_path / "front-proxy2", "front-proxy-ca")
        served.reviews.data["requestheader-client-ca-file"] = served.authority.pem
        await served.served.refresh()
        with pytest.raises((aiohttp.ClientError, ConnectionError)):  # its connection has been closed
            await served.get(old, API)
    async with served.session(before.client("front-proxy")) as session:
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await served.get(session, API)
    async with served.session() as session:
        assert (await served.get(session, API))[0] == 200
        served.reviews.data["requestheader-client-ca-file"] = "nonsense"
        (served.certificate / "tls.key").write_text("nonsense")
        with pytest.raises(ValueError, match=r"tls\.crt, tls\.key or the front proxy's authority"):
            await served.served.refresh()
        assert (await served.get(session, API))[0] == 200
    async with served.session() as session:
        assert (await served.get(session, API))[0] == 200


async def test_it_waits_for_a_certificate_and_for_a_front_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "RETRY_SECONDS", 0.02)
    async with aggregation(tmp_path, Samples(_observe, _query, lambda observed: False)) as world:
        (tmp_path / "certificate" / "tls.crt").unlink()
        await until(lambda: "tls.crt" in caplog.text)
        data, world.reviews.data = world.reviews.data, {}
        await until(lambda: "names no front proxy: the API server needs --requestheader-client-ca-file" in caplog.text)
        assert caplog.text.count("names no front proxy") == 1
        world.reviews.data = data
        world.serving.server(world.certificate, SERVER_NAME)
        await until(lambda: world.served._front_proxy)
        async with world.session() as session:
            assert (await world.get(session, API))[0] == 200


async def test_connections_that_show_no_certificate_take_no_place(
    served: Aggregation, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting = [
        await asyncio.open_connection("127.0.0.1", served.served.port) for _ in range(listener.MOST_HANDSHAKES + 20)
    ]
    pending = served.served._listener._handshakes
    await until(lambda: len(pending) == listener.MOST_HANDSHAKES)
    async with served.session() as session:
        assert (await served.get(session, API))[0] == 200
    assert len(pending) <= listener.MOST_HANDSHAKES
    assert [await reader.read() for reader, _ in resting[:20]] == [b""] * 20  # those that have rested longest
    for _, writer in resting:
        writer.close()
    await until(lambda: not pending)

    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.served.port)
    assert await reader.read() == b""
    writer.close()


async def test_connections_are_taken_one_after_the_other(served: Aggregation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "BETWEEN_SECONDS", 1000.0)
    resting = [await asyncio.open_connection("127.0.0.1", served.served.port) for _ in range(5)]
    pending = served.served._listener._handshakes
    await until(lambda: pending)
    await asyncio.sleep(0.1)
    assert len(pending) == 1
    for _, writer in resting:
        writer.close()


async def test_open_connections_and_headers_are_bounded(served: Aggregation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 2)
    context = served.context(served.authority.client("front-proxy"))

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", served.served.port, ssl=context, server_hostname=SERVER_NAME)

    first = await connect()
    second = await connect()
    await until(lambda: len(served.served._server.connections) == 2)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await connect()
    reader, writer = first
    writer.write(b"GET /apis HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 20_000 + b"\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"400"
    for _, each in (first, second):
        each.close()
    await until(lambda: not served.served._server.connections)
    async with served.session() as session:
        assert (await served.get(session, API))[0] == 200


async def test_a_response_takes_five_seconds_at_most(served: Aggregation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RESPONSE_SECONDS", 0.05)

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(served.served._samples, "value", never)
    async with served.session() as session:
        code, body = await served.get(session, f"{QUEUED}?labelSelector={NAME}=qwen")
    assert (code, body["message"]) == (503, "no response within 0.05 s")
