"""How long a request waits that wakes a service at zero, beyond the cold start of its engine.

One service of the demo model in the local runtime, with the real router, check and engine. Each time it has fallen
asleep a stream is sent to it, and noted is when its engine's pod is there, when that engine says it is healthy, and
when the first token arrives. What lies between the pod and `/health` is the engine's own start (check, weights,
compiling) and would be as long without us; the rest is what the router and the operator add.

    python -m benchmarks.operator.wake        QUICK=1 for two times
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx

from benchmarks.figures import QUICK, Figure, report
from benchmarks.fleet import BIN, DEMO_MODEL, free_port
from blade_operator.cluster.local.layout import Layout
from blade_operator.cluster.local.store import read_objects
from blade_operator.model.objects import Object
from blade_protocol import paths
from blade_protocol.labels import ROLE, ROLE_ENGINE

T = TypeVar("T")

TIMES = 2 if QUICK else 8
IDLE = "10s"
ADDED = 1.0
"""Seconds that may be added to the engine's own start."""
_BODY = {
    "messages": [{"role": "user", "content": "What does len do?"}],
    "max_tokens": 8,
    "temperature": 0,
    "stream": True,
}


@dataclass(frozen=True)
class Wake:
    """Seconds from the request on."""

    pod: float
    healthy: float
    token: float

    @property
    def added(self) -> float:
        """What is not the engine's own start."""
        return self.pod + self.token - self.healthy


class Service:
    """The demo model in a local runtime of its own, which sleeps after ten idle seconds."""

    def __init__(self, folder: Path, port: int) -> None:
        self.layout = Layout(folder / "bladellm" / "default")
        self.url = f"http://127.0.0.1:{port}"

    def engines(self) -> list[Object]:
        """Pods of engines."""
        pods = read_objects(self.layout.objects, "Pod")
        return [pod for pod in pods if pod["metadata"]["labels"].get(ROLE) == ROLE_ENGINE]

    def service(self) -> Object:
        """The LLMService, or nothing yet."""
        return next(read_objects(self.layout.objects, "LLMService"), {})

    async def until_asleep(self) -> None:
        """Until there is no engine, and the service says so."""
        async with asyncio.timeout(300):
            await _until(lambda: not self.engines() and self.service().get("status", {}).get("phase") == "Sleeping")
        await asyncio.sleep(2)


async def _until(condition: Callable[[], T]) -> T:
    """What it returns once that is true."""
    while True:
        if value := condition():
            return value
        await asyncio.sleep(0.01)


async def wake(service: Service) -> Wake:
    """Wake it with one stream."""
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        body = {"model": service.service()["metadata"]["name"], **_BODY}
        begin = time.monotonic()
        watched = asyncio.create_task(_until_healthy(service, client))
        async with client.stream("POST", f"{service.url}{paths.CHAT_COMPLETIONS}", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if _has_token(line):
                    break
            token = time.monotonic()
        pod, healthy = await watched
    return Wake(pod - begin, healthy - begin, token - begin)


def _has_token(line: str) -> bool:
    if not line.startswith("data: {"):
        return False
    return any(choice["delta"].get("content") for choice in json.loads(line[6:])["choices"])


async def _until_healthy(service: Service, client: httpx.AsyncClient) -> tuple[float, float]:
    """When its engine's pod is there, and when that is healthy."""
    [engine] = await _until(service.engines)
    pod = time.monotonic()
    url = f"http://127.0.0.1:{_port(engine)}{paths.HEALTH}"
    while True:
        with contextlib.suppress(httpx.TransportError):
            if (await client.get(url)).status_code == 200:
                return pod, time.monotonic()
        await asyncio.sleep(0.01)


def _port(pod: Object) -> int:
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    return int(ports["http"])


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Service]:
    """The service, until the end."""
    port = free_port()
    command = [
        str(BIN / "blade_operator"), "local", "up", "--port", str(port), "--model", str(DEMO_MODEL),
        "--replicas", "1", "--idle_to_zero", IDLE,
    ]  # fmt: skip
    with (folder / "up.txt").open("w") as output:
        environment = {**os.environ, "XDG_STATE_HOME": str(folder)}
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            yield Service(folder, port)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


async def measure(service: Service) -> list[Figure]:
    """As often as `TIMES`."""
    await service.until_asleep()
    wakes = []
    for _ in range(TIMES):
        wakes.append(await wake(service))
        print(
            f"  pod {wakes[-1].pod:.2f} s, healthy {wakes[-1].healthy:.2f} s, token {wakes[-1].token:.2f} s", flush=True
        )
        await service.until_asleep()
    added = [each.added for each in wakes]
    return [
        Figure("request_to_pod_p50", statistics.median(each.pod for each in wakes), "s"),
        Figure("pod_to_healthy_p50", statistics.median(each.healthy - each.pod for each in wakes), "s"),
        Figure("healthy_to_token_p50", statistics.median(each.token - each.healthy for each in wakes), "s"),
        Figure("added_p50", statistics.median(added), "s", "<=", ADDED),
        Figure("added_max", max(added), "s", "<=", ADDED),
    ]


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as service:
        return report("wake", asyncio.run(measure(service)))


if __name__ == "__main__":
    sys.exit(main())
