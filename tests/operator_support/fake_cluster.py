"""A small API server in a thread: objects, logs that grow, port-forwards to real ports, and Jobs that a test runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from blade_operator.cluster.kubernetes.kinds import JOB, KINDS
from blade_operator.model.objects import Object

_KINDS = {**KINDS, JOB.name: JOB}


class FakeCluster:
    """What the server knows, and what it was asked for."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        """By path."""
        self.logs: dict[tuple[str, str, bool], bytes] = {}
        """By pod, container and whether it is the previous one."""
        self.ports: dict[tuple[str, int], int] = {}
        """Port of this machine behind a port of a pod."""
        self.refused: dict[str, tuple[int, str]] = {}
        """Status and message for every request whose path ends so."""
        self.requests: list[str] = []
        self.on_create: Callable[[Object], None] = lambda obj: None
        self.kubeconfig = Path()

    def put(self, *objects: Object) -> None:
        for obj in objects:
            metadata = obj["metadata"]
            self.objects[_KINDS[obj["kind"]].path(metadata["namespace"], metadata["name"])] = obj

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        for end, (status, message) in self.refused.items():
            if request.path.endswith(end):
                return web.json_response({"kind": "Status", "message": message}, status=status)
        if request.method in ("POST", "PUT"):
            obj = await request.json()
            self.put(obj)
            self.on_create(obj)
            return web.json_response(obj, status=201)
        if request.method == "DELETE":
            gone = self.objects.pop(request.path, None)
            return _missing(request) if gone is None else web.json_response({"kind": "Status"})
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.34.0"})
        if request.path.endswith("/log"):
            return await self._log(request)
        if request.path.endswith("/portforward"):
            return await self._forward(request)
        if request.path in self.objects:
            return web.json_response(self.objects[request.path])
        if any(request.path in (kind.path(), _listed(kind.path("NS"), request.path)) for kind in _KINDS.values()):
            return web.json_response({"items": self._list(request)})
        return _missing(request)

    def _list(self, request: web.Request) -> list[Object]:
        selector = request.query.get("labelSelector", "")
        wanted = dict(part.split("=") for part in selector.split(",") if part)
        return [
            {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}
            for path, obj in self.objects.items()
            if request.path in (path.rpartition("/")[0], _everywhere(path))
            and wanted.items() <= (obj["metadata"].get("labels") or {}).items()
        ]

    async def _log(self, request: web.Request) -> web.StreamResponse:
        pod, query = request.path.split("/")[-2], request.query
        key = (pod, query["container"], query.get("previous") == "true")
        if key not in self.logs:
            message = f'previous terminated container "{key[1]}" in pod "{pod}" not found'
            return web.json_response({"kind": "Status", "message": message}, status=400)
        data = self.logs[key]
        if "tailLines" in query:
            lines = data.splitlines(keepends=True)
            data = b"".join(lines[len(lines) - int(query["tailLines"]) :])
        data = data[: int(query.get("limitBytes", len(data)))]
        if query.get("follow") != "true":
            return web.Response(body=data)
        response = web.StreamResponse()
        await response.prepare(request)
        for line in data.splitlines(keepends=True):
            await response.write(line)
            await asyncio.sleep(0.05)
        return response

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        """As a kubelet does: the number of the port on both streams first, then data on stream 0, errors on 1."""
        pod, port = request.path.split("/")[-2], int(request.query["ports"])
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        for stream in (0, 1):
            await socket.send_bytes(bytes([stream]) + port.to_bytes(2, "little"))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[pod, port])
        except (KeyError, OSError):
            await socket.send_bytes(b"\x01" + f"failed to connect to localhost:{port} inside the pod".encode())
            await socket.close()
            return socket

        async def down() -> None:
            while data := await reader.read(65536):
                await socket.send_bytes(b"\x00" + data)
            await socket.close()

        sending = asyncio.create_task(down())
        async for message in socket:
            if message.type is WSMsgType.BINARY and message.data[0] == 0:
                writer.write(message.data[1:])
                await writer.drain()
        sending.cancel()
        writer.close()
        return socket


def _listed(pattern: str, path: str) -> str:
    """``path`` when it lists a kind in some namespace, whose path in namespace NS is ``pattern``."""
    head, tail = pattern.split("/NS/")
    return path if path.startswith(f"{head}/") and path.endswith(f"/{tail}") else ""


def _everywhere(path: str) -> str:
    """The path that lists objects such as that at ``path`` of all namespaces."""
    head, _, rest = path.partition("/namespaces/")
    return f"{head}/{rest.split('/')[1]}"


def _missing(request: web.Request) -> web.Response:
    message = f'"{request.path.rpartition("/")[2]}" not found'
    return web.json_response({"kind": "Status", "reason": "NotFound", "message": message}, status=404)


@contextlib.contextmanager
def fake_cluster(folder: Path, namespace: str = "team") -> Iterator[FakeCluster]:
    """A server with nothing in it, and a kubeconfig for it."""
    cluster, loop, started = FakeCluster(), asyncio.new_event_loop(), threading.Event()
    runner: web.AppRunner | None = None
    port = 0

    async def start() -> None:
        nonlocal runner, port
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", cluster._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.5)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        started.set()

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    context: dict[str, Any] = {"cluster": "a", "user": "a", "namespace": namespace}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "contexts": [{"name": "a", "context": context}, {"name": "b", "context": {**context, "namespace": "other"}}],
        "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "a", "user": {}}],
    }
    cluster.kubeconfig = folder / "kubeconfig"
    cluster.kubeconfig.write_text(json.dumps(config))
    yield cluster
    assert runner is not None
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def llm(name: str = "qwen", namespace: str = "team", **status: Any) -> Object:
    """An LLMService."""
    return {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"model": {"uri": "pvc://models/qwen"}, "replicas": 1},
        "status": {"observedGeneration": 1, **status},
    }


def pod(name: str, role: str, state: Object | None = None, service: str = "qwen", **fields: Any) -> Object:
    """A pod of a service with one container, called as its role, which runs and is ready unless ``state`` says more.

    ``fields``: of the container in the spec.
    """
    container = {"name": role, "image": "bladellm/x:1", "command": [f"blade_{role}"], **fields}
    container.setdefault("ports", [{"name": "http", "containerPort": 80}, {"name": "admin", "containerPort": 81}])
    entry = {"name": role, "ready": state is None, "restartCount": 0, "started": True, "state": {"running": {}}}
    ready = "True" if state is None else "False"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"serving.bladellm.io/name": service, "serving.bladellm.io/role": role},
        },
        "spec": {"containers": [container], "nodeName": "node-1"},
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": ready}],
            "containerStatuses": [{"lastState": {}, **entry, **(state or {})}],
        },
    }
