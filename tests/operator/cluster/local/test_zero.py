"""Zero and back on the local runtime: the real router holds what comes while no engine is there, and one is started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from operator_support.loop import Loop, loop, manifest

from blade_operator.cluster.local.logs import ContainerLogs
from blade_protocol import paths
from blade_protocol.routing import HoldConfig
from blade_protocol.signals import RouterSignals

REQUESTS = 256
HEARTBEAT = HoldConfig().heartbeat
SCALING: dict[str, Any] = {
    "mode": "Concurrency", "min": 0, "max": 1, "target": {"concurrency": 1000}, "idleToZero": "10s"
}  # fmt: skip


@pytest.mark.soak  # e2e/tests/test_service_zero.py asks the same of a real cluster each time
def test_a_service_sleeps_and_256_requests_that_wake_it_are_answered_in_order(tmp_path: Path) -> None:
    unready = tmp_path / "unready"
    spec: dict[str, Any] = {
        "scaling": SCALING,
        "engine": {"env": [{"name": "FAKE_ENGINE", "value": f"--steer {tmp_path}"}]},
        "router": {"queue": {"endpointRequests": 1}},
    }
    with loop(tmp_path, real_router=True) as running:
        running.start("-f", str(manifest(tmp_path, **spec)))
        _until_asleep(running)
        assert running.condition("qwen", "Ready") == "True"
        assert "Sleeping" in running.command("get")
        unready.touch()
        responses = asyncio.run(_send_all(running, unready.unlink))
        assert {response.status_code for response in responses} == {200}
        assert responses[1].text.startswith(": waiting\n\n")
        for stream in responses[1::2]:
            assert stream.text.endswith("data: [DONE]\n\n")
        assert _served(running) == [f"chat {number}" for number in range(REQUESTS)]
        running.until(lambda: {"Sleeping", "Waking", "Woke"} <= _events(running))
        _until_asleep(running)


def _until_asleep(running: Loop) -> None:
    running.until(lambda: running.service("qwen").get("status", {}).get("phase") == "Sleeping", 60)
    running.until(lambda: not _engines(running))


def _engines(running: Loop) -> list[Any]:
    return [pod for pod in running.objects("Pod") if "-engine-" in pod["metadata"]["name"]]


async def _send_all(running: Loop, make_ready: Callable[[], None]) -> list[httpx.Response]:
    """Every other one a stream, each sent when the one before is held; the engine is ready when the first has had its
    heartbeat."""
    url = running.service("qwen")["status"]["url"].removesuffix("/v1")
    limits = httpx.Limits(max_connections=REQUESTS)
    async with (
        httpx.AsyncClient(base_url=url, limits=limits, timeout=60, trust_env=False) as client,
        httpx.AsyncClient(base_url=_admin_url(running), timeout=60, trust_env=False) as admin,
    ):
        sent = []
        for number in range(REQUESTS):
            body = {"model": "qwen", "messages": [], "stream": bool(number % 2)}
            names = {"x-number": str(number)}
            sent.append(asyncio.create_task(client.post(paths.CHAT_COMPLETIONS, json=body, headers=names)))
            await _until_held(admin, number + 1)
        await _until_held(admin, REQUESTS, HEARTBEAT + 1)
        make_ready()
        return await asyncio.gather(*sent)


async def _until_held(admin: httpx.AsyncClient, count: int, seconds: float = 0.0) -> None:
    """Wait until the router holds so many requests, the oldest of them for so long."""
    while True:
        signals = msgspec.json.decode((await admin.get(paths.INTERNAL_SIGNALS)).content, type=RouterSignals)
        if any(each.held_requests == count and each.held_oldest_seconds >= seconds for each in signals.services):
            return
        await asyncio.sleep(0.01)


def _admin_url(running: Loop) -> str:
    [router] = [pod for pod in running.objects("Pod") if "-router-" in pod["metadata"]["name"]]
    ports = {port["name"]: port["containerPort"] for port in router["spec"]["containers"][0]["ports"]}
    return f"http://127.0.0.1:{ports['admin']}"


def _served(running: Loop) -> list[str]:
    [engine] = _engines(running)
    lines = ContainerLogs(running.layout.pod(engine) / "logs" / "engine").path(0).read_text().splitlines()
    return [line for line in lines if line.startswith("chat ")]


def _events(running: Loop) -> set[str]:
    return {event["reason"] for event in running.objects("Event")}
