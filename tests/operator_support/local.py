"""A local runtime inside a test: started on a folder of its own, everything it started gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx

from blade_operator.cluster.local.layout import Layout
from blade_operator.cluster.local.pod_status import is_ready, is_terminating
from blade_operator.cluster.local.process import ProcessId, marked
from blade_operator.cluster.local.runtime import Runtime
from blade_operator.model.objects import Object, Ref

T = TypeVar("T")


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def until(condition: Callable[[], T | None], seconds: float = 20.0) -> T:
    """Wait until ``condition`` gives something true, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s")


class Local:
    """A running runtime and short ways to inspect it."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.store = runtime.store

    async def apply(self, *objects: Object) -> None:
        for obj in objects:
            await self.runtime.cluster.apply(obj)

    def pods(self) -> list[Object]:
        return self.store.find("Pod")

    def ready(self) -> list[Object]:
        return [pod for pod in self.pods() if is_ready(pod) and not is_terminating(pod)]

    async def ready_pods(self, count: int) -> list[Object]:
        """Wait for exactly ``count`` pods, all ready."""
        return await until(lambda: self.ready() if len(self.ready()) == len(self.pods()) == count else None)

    def endpoints(self, service: str = "qwen-engine") -> list[dict[str, Any]]:
        path = self.runtime.layout.endpoints / "default" / f"{service}.json"
        if not path.exists():
            return []
        endpoints: list[dict[str, Any]] = json.loads(path.read_bytes()).get("endpoints", [])
        return endpoints

    def events(self, reason: str) -> list[str]:
        return [event["message"] for event in self.store.find("Event") if event["reason"] == reason]

    def get(self, kind: str, name: str) -> Object:
        obj = self.store.get(Ref(kind, "default", name))
        assert obj is not None
        return obj


def status_of(pod: Object, container: str) -> Object:
    """One container's status."""
    status = pod["status"]
    entries = [*status.get("initContainerStatuses", []), *status["containerStatuses"]]
    found: Object = next(entry for entry in entries if entry["name"] == container)
    return found


def pid_of(pod: Object, container: str = "engine") -> int:
    """The process a container runs as."""
    identity = ProcessId.parse(status_of(pod, container)["containerID"])
    assert identity is not None
    return identity.pid


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits to be reaped does not."""
    return ProcessId.of(pid) is not None


def port_of(pod: Object, name: str = "http") -> int:
    """One port of a pod's only container."""
    ports = pod["spec"]["containers"][0]["ports"]
    return int(next(port["containerPort"] for port in ports if port["name"] == name))


async def about(pod: Object) -> dict[str, Any]:
    """The stand-in's description of itself."""
    async with httpx.AsyncClient() as client:
        response: dict[str, Any] = (await client.get(f"http://127.0.0.1:{port_of(pod)}/about")).json()
        return response


@contextlib.asynccontextmanager
async def local(folder: Path, port: int | None = None) -> AsyncIterator[Local]:
    """A runtime on ``folder``; at the end every process it left is killed."""
    layout = Layout(folder / "state")
    runtime = Runtime(layout, port or free_port())
    runtime.start()
    try:
        yield Local(runtime)
    finally:
        await runtime.close()
        kill_marked(layout)


def kill_marked(layout: Layout) -> None:
    """Kill everything a runtime on the folder started."""
    for pid in marked(layout.root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
