"""The HTTP client for engines against real sockets: responses, silence, malformed bodies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from operator_support.local import free_port, local, port_of
from operator_support.mini_cluster import engine_state
from operator_support.objects import deployment, router

from blade_operator import metrics
from blade_operator.fleet import Fleet, FleetReport, admin_url, engine_url, fetch_url, started_routers
from blade_operator.kept_connections import Peer
from blade_operator.model.objects import Object
from blade_operator.model.observed import needs_signals
from blade_protocol.adapters import AdapterCounts, AdapterInfo, AdapterList, LoadAdapterRequest
from blade_protocol.fetch import FetchProgress
from blade_protocol.signals import RouterSignals


def _pod(port: int, name: str = "odd") -> Object:
    return {
        "metadata": {"name": name, "labels": {"serving.bladellm.io/role": "engine"}},
        "spec": {"containers": [{"name": "engine", "ports": [{"name": "internal", "containerPort": port}]}]},
        "status": {"podIP": "127.0.0.1", "containerStatuses": [{"name": "engine", "started": True}]},
    }


@contextlib.asynccontextmanager
async def _engine_that_returns(body: bytes | None, requests: list[str] | None = None) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if requests is not None:
            requests.append(request.decode())
        if body is None:
            await asyncio.sleep(30)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body or b"") + (body or b""))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_states_are_by_pod_and_an_engine_that_does_not_respond_is_unknown(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime, Fleet(timeout=0.3) as fleet:
        await runtime.apply(deployment(replicas=2), router())
        pods = await runtime.ready_pods(3)
        async with _engine_that_returns(None) as silent, _engine_that_returns(b'{"model": 3}') as odd:
            strangers = [_pod(silent, "silent"), _pod(odd, "odd"), _pod(free_port(), "closed")]
            states = (await fleet.query([*pods, *strangers])).engines
        engines = [pod["metadata"]["name"] for pod in pods if "engine" in pod["metadata"]["name"]]
        assert sorted(states) == sorted(engines)
        assert {state.model for state in states.values()} == {"fake"}


async def test_drain_reaches_the_engine(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime, Fleet() as fleet:
        await runtime.apply(deployment())
        (pod,) = await runtime.ready_pods(1)
        assert await fleet.drain(pod)
        states = (await fleet.query([pod])).engines
        assert states[pod["metadata"]["name"]].draining
        assert not await fleet.drain(_pod(free_port()))
        assert await fleet.drain(pod, draining=False)
        states = (await fleet.query([pod])).engines
        assert not states[pod["metadata"]["name"]].draining


async def test_only_started_engines_have_an_address(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment())
        (pod,) = await runtime.ready_pods(1)
        assert engine_url(pod) == f"http://127.0.0.1:{port_of(pod, 'internal')}"
        pod["status"]["containerStatuses"][0]["started"] = False
        assert engine_url(pod) is None


def _fetching(port: int, name: str = "fetching") -> Object:
    pod = _pod(port, name)
    pod["spec"]["initContainers"] = [{"name": "fetch"}]
    pod["status"]["initContainerStatuses"] = [{"name": "fetch", "state": {"running": {}}}]
    pod["status"]["containerStatuses"] = [{"started": False, "name": "engine", "state": {}}]
    return pod


async def test_a_downloading_pod_is_queried_for_its_progress_and_nothing_else() -> None:
    requests: list[str] = []
    response = b'{"model": "hf://a/b", "bytes": 100, "bytes_done": 42}'
    async with _engine_that_returns(response, requests) as port, Fleet(timeout=5) as fleet:
        pod = _fetching(port)
        report = await fleet.query([pod])
        engines, downloads = report.engines, report.downloads
        assert engines == {}
        assert downloads == {"fetching": FetchProgress(model="hf://a/b", bytes=100, bytes_done=42)}
        assert [request.split()[:2] for request in requests] == [["GET", "/internal/fetch"]]
        pod["status"]["initContainerStatuses"][0]["state"] = {"terminated": {"exitCode": 0}}
        assert fetch_url(pod) is None
        assert await fleet.query([pod]) == FleetReport()


async def test_every_request_carries_the_token_of_its_pod() -> None:
    requests: list[str] = []
    tokens = {"one": "s3cret", "two": None}
    async with (
        _engine_that_returns(b"{}", requests) as port,
        Fleet(5, lambda pod: tokens[pod["metadata"]["name"]]) as fleet,
    ):
        await fleet.query([_pod(port, "one"), _fetching(port, "one")])
        await fleet.drain(_pod(port, "one"))
        assert ["x-blade-internal-token: s3cret" in request for request in requests] == [True] * 3
        requests.clear()
        await fleet.query([_pod(port, "two")])
        assert "x-blade-internal-token" not in requests[0]


def test_an_ipv6_pod_has_an_address() -> None:
    pod = _pod(9081)
    pod["status"]["podIP"] = "fd00::7"
    assert engine_url(pod) == "http://[fd00::7]:9081"


@pytest.mark.parametrize(("status", "counted"), [("401 Unauthorized", True), ("403 Forbidden", False)])
async def test_an_engine_that_expects_another_token_is_reported_and_counted(status: str, counted: bool) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    before = metrics.ENGINE_UNAUTHORIZED._value.get()
    async with server, Fleet(token=lambda pod: "old") as fleet:
        report = await fleet.query([_pod(server.sockets[0].getsockname()[1], "one"), _pod(free_port(), "silent")])
    assert report == FleetReport(unauthorized=frozenset({"one"} if counted else ()))
    assert metrics.ENGINE_UNAUTHORIZED._value.get() == before + counted


@contextlib.asynccontextmanager
async def _engine_with_adapters(
    responses: dict[str, tuple[str, bytes]], requests: list[tuple[str, bytes]]
) -> AsyncIterator[int]:
    """An engine that responds by path and keeps what it was sent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next((line.split(": ")[1] for line in head.split("\r\n") if line.startswith("content-length")), "0")
        path = head.split()[1]
        requests.append((path, await reader.readexactly(int(length))))
        status, body = responses[path]
        writer.write(
            b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status.encode(), len(body)) + body
        )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def _state(serves: bool) -> bytes:
    counts = AdapterCounts(device_hits=0, device_loads=0, host_hits=0, host_loads=0, host_evictions=0)
    state = engine_state({"metadata": {"labels": {}}})
    return msgspec.json.encode(msgspec.structs.replace(state, adapter_counts=counts if serves else None))


async def test_only_engines_that_serve_adapters_are_asked_for_them() -> None:
    info = AdapterInfo(name="sql", path="/sql", tier="host", rank=8, nbytes=9, digest="d")
    listed = ("200 OK", msgspec.json.encode(AdapterList(adapters=[info])))
    asked: dict[str, list[tuple[str, bytes]]] = {"with": [], "without": []}
    with_them = {"/internal/state": ("200 OK", _state(True)), "/internal/adapters": listed}
    without = {"/internal/state": ("200 OK", _state(False))}
    async with (
        _engine_with_adapters(with_them, asked["with"]) as one,
        _engine_with_adapters(without, asked["without"]) as two,
        Fleet(timeout=5) as fleet,
    ):
        report = await fleet.query([_pod(one, "with"), _pod(two, "without")])
    assert report.adapters == {"with": (info,)}
    assert {pod: [path for path, _ in each] for pod, each in asked.items()} == {
        "with": ["/internal/state", "/internal/adapters"],
        "without": ["/internal/state"],
    }


async def test_an_engine_without_a_list_is_unknown() -> None:
    responses = {"/internal/state": ("200 OK", _state(True)), "/internal/adapters": ("500 No", b"")}
    async with _engine_with_adapters(responses, []) as port, Fleet(timeout=5) as fleet:
        report = await fleet.query([_pod(port, "odd")])
    assert (list(report.engines), report.adapters) == (["odd"], {})


@pytest.mark.parametrize(
    ("status", "body", "refusal"),
    [
        ("202 Accepted", b"{}", ""),
        ("200 OK", b"{}", ""),
        ("409 Conflict", b'{"error": {"message": "is loaded already"}}', "is loaded already"),
        ("400 Bad Request", b"odd", "odd"),
        ("400 Bad Request", b"", "HTTP 400"),
        ("503 Busy", b'{"error": {"message": "busy: 64 adapters wait"}}', ""),
    ],
)
async def test_loading_says_why_an_engine_refuses(status: str, body: bytes, refusal: str) -> None:
    requests: list[tuple[str, bytes]] = []
    request = LoadAdapterRequest(lora_name="sql", lora_path="/sql", wait=False, replace=True)
    responses = {"/internal/adapters/load": (status, body)}
    async with _engine_with_adapters(responses, requests) as port, Fleet(timeout=5) as fleet:
        assert await fleet.load_adapter(_pod(port), request) == refusal
    [(_, sent)] = requests
    assert msgspec.json.decode(sent, type=LoadAdapterRequest) == request


async def test_unloading_reaches_the_engine_and_silence_is_no_refusal() -> None:
    requests: list[tuple[str, bytes]] = []
    responses = {"/internal/adapters/unload": ("200 OK", b"{}")}
    async with _engine_with_adapters(responses, requests) as port, Fleet(timeout=5) as fleet:
        assert await fleet.unload_adapter(_pod(port), "sql")
    assert requests == [("/internal/adapters/unload", b'{"lora_name":"sql"}')]
    async with Fleet(timeout=0.3) as fleet:
        gone = _pod(free_port())
        assert await fleet.load_adapter(gone, LoadAdapterRequest(lora_name="a", lora_path="/a")) == ""
        assert not await fleet.unload_adapter(gone, "a")


def _router(port: int, name: str = "router") -> Object:
    ports = [{"name": "http", "containerPort": 1}, {"name": "admin", "containerPort": port}]
    return {
        "metadata": {"name": name, "labels": {"serving.bladellm.io/role": "router"}},
        "spec": {"containers": [{"name": "router", "ports": ports}]},
        "status": {"podIP": "127.0.0.1", "containerStatuses": [{"name": "router", "started": True}]},
    }


async def test_routers_are_asked_for_their_signals_only_for_who_needs_them() -> None:
    requests: list[str] = []
    response = b'{"started": 1.0, "time": 2.0, "in_flight": 3}'
    async with (
        _engine_that_returns(response, requests) as port,
        _engine_that_returns(b"not JSON") as odd,
        Fleet(5, lambda pod: "s3cret") as fleet,
    ):
        pods = [_router(port), _router(odd, "odd"), _router(free_port(), "closed")]
        assert await fleet.query(pods) == FleetReport()
        assert not requests
        report = await fleet.query(pods, signals=True)
    assert report == FleetReport(signals={"router": RouterSignals(started=1.0, time=2.0, in_flight=3)})
    assert [request.split()[:2] for request in requests] == [["GET", "/internal/signals"]]
    assert "x-blade-internal-token: s3cret" in requests[0]


async def test_signals_that_are_asked_for_again_and_again_are_asked_for_with_the_token() -> None:
    requests: list[str] = []
    before = metrics.ENGINE_UNAUTHORIZED._value.get()
    refused = {"/internal/signals": ("401 Unauthorized", b"{}")}
    async with (
        _engine_that_returns(b'{"started": 1.0, "time": 2.0, "in_flight": 3}', requests) as port,
        _engine_that_returns(b"not JSON") as odd,
        _engine_with_adapters(refused, []) as strange,
        Fleet(5, lambda pod: pod["metadata"]["name"]) as fleet,
    ):
        pods = [_router(port), _router(odd, "odd"), _router(free_port(), "closed"), _router(strange, "strange")]
        routers = started_routers([*pods, _pod(port)])
        assert [router.name for router in routers] == ["router", "odd", "closed", "strange"]
        signals = RouterSignals(started=1.0, time=2.0, in_flight=3)
        assert await fleet.query_signals(routers) == {"router": signals}
        assert await fleet.query_signals(routers[:1]) == {"router": signals}
        assert await fleet.query_signals(()) == {}
    assert [request.split()[:2] for request in requests] == [["GET", "/internal/signals"]] * 2
    assert all("x-blade-internal-token: router\r\n" in request for request in requests)
    assert metrics.ENGINE_UNAUTHORIZED._value.get() == before + 1


async def test_a_router_that_expects_another_token_is_reported() -> None:
    refused = {"/internal/signals": ("401 Unauthorized", b"{}")}
    async with _engine_with_adapters(refused, []) as port, Fleet(5) as fleet:
        report = await fleet.query([_router(port)], signals=True)
    assert report == FleetReport(unauthorized=frozenset({"router"}))


def test_a_router_is_known_by_its_pods_uid_not_by_its_address() -> None:
    one, other = _router(9080), _router(9080)
    one["metadata"]["uid"], other["metadata"]["uid"] = "1", "2"
    one["status"]["podIP"] = other["status"]["podIP"] = "fd00::7"
    found = [router.peer for router in started_routers([one, other])]
    assert found == [Peer("1", "fd00::7", 9080), Peer("2", "fd00::7", 9080)]


async def test_a_router_that_does_not_respond_delays_no_engine() -> None:
    async with _engine_that_returns(None) as silent, Fleet(timeout=0.3) as fleet:
        assert await fleet.query([_router(silent)], signals=True) == FleetReport()
        starting = _router(silent)
        starting["status"]["containerStatuses"][0]["started"] = False
        assert admin_url(starting) is None
        assert admin_url(_pod(silent)) is None


@pytest.mark.parametrize(
    ("spec", "needed"),
    [
        ({}, False),
        ({"scaling": {"mode": "Fixed"}}, False),
        ({"scaling": {"mode": "External"}}, False),
        ({"scaling": {"mode": "Concurrency"}}, True),
        ({"scaling": {"mode": "SLO"}}, True),
        ({"scaling": {"mode": "Advisory"}}, True),
        ({"rollout": {"canary": {"steps": [5]}}}, True),
        ([], False),
        ({"scaling": [], "rollout": "now"}, False),
    ],
)
def test_who_needs_signals(spec: Any, needed: bool) -> None:
    assert needs_signals({"spec": spec}) is needed
