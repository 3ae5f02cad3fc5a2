"""Support of the Kubernetes tests: a clock that is set by hand, and a fake API server that fails on demand."""

from __future__ import annotations

import asyncio
import copy
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from blade_operator.cluster.kubernetes.api import METADATA, ApiError
from blade_operator.cluster.kubernetes.kinds import KINDS, WATCHED, Kind
from blade_operator.cluster.kubernetes.watching.scopes import Scope
from blade_operator.model.objects import Object


class Clock:
    """Stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def config_map(name: str, version: int, service: str = "qwen", namespace: str = "team", **data: str) -> Object:
    """A ConfigMap as the server sends it in a list: without kind."""
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {"app.kubernetes.io/managed-by": "bladellm", "serving.bladellm.io/name": service},
        },
        "data": data,
    }


def llm_service(
    version: int, generation: int = 1, name: str = "qwen", namespace: str = "team", **status: Any
) -> Object:
    return {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "generation": generation,
        },
        "spec": {"replicas": 1},
        "status": status,
    }


def lora_adapter(name: str, version: int, namespace: str = "team", **labels: str) -> Object:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LoRAAdapter",
        "metadata": {**metadata, "generation": 1, "labels": labels},
        "spec": {"uri": f"file:///{name}"},
    }


Refusal = tuple[int, str]
"""HTTP status and message."""
_CLOSE = object()
_RESET = object()


class FakeApiServer:
    """Lists and watches as an API server does, over real sockets; a test scripts its failures.

    A write (`put`, `delete`) is an event for every watch, unless the watches are broken: then it stays unknown.
    """

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[tuple[str, str, str], Object] = {}
        """Objects by kind, namespace and name."""
        self.refused: dict[str, Refusal] = {}
        """The response to every request for a path."""
        self.unwatchable: dict[str, Refusal] = {}
        """The response to every watch of a path."""
        self.once: defaultdict[str, list[Refusal | dict[str, str]]] = defaultdict(list)
        """By path: what the next whole lists, continued lists or watches get: ``list``, ``continue``, ``watch`` and
        the path, with a space between."""
        self.requests: list[web.Request] = []
        self.lists: list[str] = []
        self.watches: list[tuple[str, str]] = []
        """Path and version."""
        self.broken = False
        """While it is set, watches get nothing, and a new one ends at once with 410."""
        self.page = 0
        """Objects per page at most; 0: what the client wants."""
        self.before_watch: Callable[[], None] = lambda: None
        self.end_watches = False
        self.undiscovered: set[str] = set()
        """Plurals of kinds that the discovery lists leave out, though they are served."""
        self.lease: Object | None = None
        self.configuration: Any = None
        self._streams: list[tuple[Kind, str | None, asyncio.Queue[Any]]] = []
        self._history: list[tuple[int, str, Kind, Object]] = []

    # What the test does

    def put(self, kind: str, obj: Object, *, quiet: bool = False) -> None:
        """Store ``obj`` at the next version."""
        metadata = obj["metadata"]
        key = (kind, metadata["namespace"], metadata["name"])
        event = "MODIFIED" if key in self.objects else "ADDED"
        self.version += 1
        stored = copy.deepcopy(obj)
        stored["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = stored
        self._publish(event, KINDS[kind], stored, quiet)

    def delete(self, kind: str, name: str, namespace: str = "team", *, quiet: bool = False) -> None:
        self.version += 1
        stored = copy.deepcopy(self.objects.pop((kind, namespace, name)))
        stored["metadata"]["resourceVersion"] = str(self.version)
        self._publish("DELETED", KINDS[kind], stored, quiet)

    def restore(self, version: int, objects: list[tuple[str, Object]]) -> None:
        """Go back to a backup: ``objects`` by kind, each at its own version."""
        self.version = version
        self._history.clear()
        self.objects = {(kind, o["metadata"]["namespace"], o["metadata"]["name"]): o for kind, o in objects}

    def send(self, kind: str, event: str, obj: Any, namespace: str | None = None) -> None:
        """An event in every watch of ``kind``."""
        for watched, place, queue in self._streams:
            if watched.name == kind and namespace in (None, place):
                queue.put_nowait((event, obj))

    def reset_watches(self, kind: str | None = None) -> None:
        """Break every connection of a watch, or those of one ``kind``."""
        for watched, _, queue in self._streams:
            if kind in (None, watched.name):
                queue.put_nowait(_RESET)

    def delete_namespace(self, namespace: str) -> None:
        """All of its objects go, then the right to list anything in it, as the Role went too."""
        for kind, place, name in list(self.objects):
            if place == namespace:
                self.delete(kind, name, namespace)
        for kind in WATCHED:
            self.refused[kind.path(namespace)] = (403, f"{kind.plural} is forbidden")
        for _, place, queue in self._streams:
            if place == namespace:
                queue.put_nowait(_CLOSE)

    def listed(self, kind: str, namespace: str | None = None) -> int:
        """How often whole objects of ``kind`` were listed from the beginning."""
        return self.lists.count(KINDS[kind].path(namespace))

    @property
    def writes(self) -> list[web.Request]:
        """Every request that was not just for reading."""
        return [request for request in self.requests if request.method != "GET"]

    # What the client sees

    def _publish(self, event: str, kind: Kind, obj: Object, quiet: bool) -> None:
        if quiet or self.broken:
            return
        self._history.append((self.version, event, kind, copy.deepcopy(obj)))
        self.send(kind.name, event, _full(kind, obj), obj["metadata"]["namespace"])
        for watched, place, queue in self._streams:
            if watched is kind and place is None:
                queue.put_nowait((event, _full(kind, obj)))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if (found := _discovery(request.path, self.undiscovered)) is not None:
            return web.json_response(found)
        if "/leases" in request.path:
            return await self._lease(request)
        scope = _scope(request.path)
        if scope is None:
            return refuse((404, "not found"))
        if refusal := self.refused.get(request.path):
            return refuse(refusal)
        if "watch" in request.query:
            return await self._watch(request, scope)
        return self._list(request, scope)

    async def _lease(self, request: web.Request) -> web.Response:
        if request.method != "GET":
            self.lease = await request.json()
        return refuse((404, "not found")) if self.lease is None else web.json_response(self.lease)

    def _list(self, request: web.Request, scope: Scope) -> web.Response:
        whole = request.headers.get("Accept") != METADATA and "fieldSelector" not in request.query
        start = request.query.get("continue", "")
        if whole and not start:
            self.lists.append(request.path)
        scripted = self.once[f"{'continue' if start else 'list'} {request.path}"]
        if whole and scripted:
            return refuse(scripted.pop(0))
        found = [
            obj
            for (kind, namespace, name), obj in sorted(self.objects.items())
            if kind == scope.kind.name and scope.namespace in (None, namespace)
            and request.query.get("fieldSelector", f"metadata.name={name}") == f"metadata.name={name}"
        ]  # fmt: skip
        size = self.page or int(request.query.get("limit", "500"))
        first = int(start or 0)
        page: list[Object] | None = found[first : first + size]
        if not whole and "fieldSelector" not in request.query:
            page = [{"metadata": obj["metadata"]} for obj in page] or None  # as the real one says it
        more = str(first + size) if first + size < len(found) else ""
        metadata = {"resourceVersion": str(self.version), "continue": more}
        kind = f"{scope.kind.name}List"
        return web.json_response(
            {"kind": kind, "apiVersion": scope.kind.api_version, "metadata": metadata, "items": page}
        )

    async def _watch(self, request: web.Request, scope: Scope) -> web.StreamResponse:
        version = request.query.get("resourceVersion", "0")
        self.watches.append((request.path, version))
        self.before_watch()
        if refusal := self.unwatchable.get(request.path):
            return refuse(refusal)
        scripted = self.once[f"watch {request.path}"]
        if scripted and isinstance(scripted[0], tuple):
            refusal = scripted.pop(0)
            return refuse(refusal, retry_after="1" if refusal[0] == 429 else None)
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        if scripted:
            queue.put_nowait(("ERROR", scripted.pop(0)))
            queue.put_nowait(_CLOSE)
        elif self.broken:
            queue.put_nowait(("ERROR", EXPIRED))
            queue.put_nowait(_CLOSE)
        elif self.end_watches:
            queue.put_nowait(_CLOSE)
        for at, event, kind, obj in self._history:
            if at > int(version) and kind is scope.kind and scope.namespace in (None, obj["metadata"]["namespace"]):
                queue.put_nowait((event, _full(kind, obj)))
        stream = (scope.kind, scope.namespace, queue)
        self._streams.append(stream)
        try:
            while (item := await queue.get()) is not _CLOSE:
                if item is _RESET:
                    assert request.transport is not None
                    request.transport.abort()
                    break
                event, obj = item
                if event != "ERROR" and int(obj["metadata"]["resourceVersion"]) <= int(version):
                    continue  # a watch from a version that is yet to come gets nothing up to it
                await response.write(json.dumps({"type": event, "object": obj}).encode() + b"\n")
        except ConnectionResetError:
            pass
        finally:
            self._streams.remove(stream)
        return response


EXPIRED = {"kind": "Status", "code": 410, "message": "too old resource version"}


@asynccontextmanager
async def fake_api_server() -> AsyncIterator[FakeApiServer]:
    """A server that listens meanwhile, with the ``configuration`` to reach it."""
    server = FakeApiServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    async with TestServer(app) as listening:
        server.configuration = client.Configuration(host=f"http://{listening.host}:{listening.port}")
        server.configuration.api_key["BearerToken"] = "bearer secret"
        yield server
        for _, _, queue in server._streams:
            queue.put_nowait(_CLOSE)


def _full(kind: Kind, obj: Object) -> Object:
    return {**obj, "kind": kind.name, "apiVersion": kind.api_version}


def refuse(refusal: Any, retry_after: str | None = None) -> web.Response:
    """The response to a request that is not carried out."""
    status, message = refusal
    body = {"kind": "Status", "status": "Failure", "code": status, "reason": "Why", "message": message}
    return web.json_response(body, status=status, headers={"Retry-After": retry_after} if retry_after else None)


def _scope(path: str) -> Scope | None:
    for kind in WATCHED:
        if path == kind.path():
            return Scope(kind, None)
        if path.startswith(f"{kind.path('x').partition('/x/')[0]}/") and path.endswith(f"/{kind.plural}"):
            return Scope(kind, path.split("/")[-2])
    return None


def _discovery(path: str, undiscovered: Collection[str] = ()) -> Any:
    """The lists of APIs that kopf reads when it starts."""
    groups = {"apiextensions.k8s.io": "v1", **{kind.group: kind.version for kind in WATCHED if kind.group}}
    if path == "/api":
        return {"versions": ["v1"]}
    if path == "/apis":
        return {
            "groups": [
                {"name": group, "versions": [{"version": version}], "preferredVersion": {"version": version}}
                for group, version in groups.items()
            ]
        }
    resources = [(kind.api_version, kind.plural, kind.name, True) for kind in WATCHED]
    resources += [
        ("v1", "namespaces", "Namespace", False),
        ("v1", "events", "Event", True),
        ("apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", False),
    ]
    found = [
        {"name": plural, "kind": kind, "singularName": "", "namespaced": namespaced, "verbs": ["list", "watch"]}
        for api_version, plural, kind, namespaced in resources
        if path == ("/api/" if "/" not in api_version else "/apis/") + api_version and plural not in undiscovered
    ]
    return {"resources": found} if found else None


class LeaseServer:
    """Keeps one Lease as an API server does: a write of an older version is a conflict."""

    def __init__(self) -> None:
        self.lease: Object | None = None
        self.away = False
        self.writes = 0

    async def get(self, path: str, *, kind: str, timeout: float) -> Any:
        self._respond()
        if self.lease is None:
            raise ApiError(404, "NotFound", "not found")
        return copy.deepcopy(self.lease)

    async def write(self, method: str, path: str, body: Object, *, kind: str, timeout: float, guarded: bool) -> Object:
        self._respond()
        before = self.lease["metadata"]["resourceVersion"] if self.lease else None
        if body["metadata"].get("resourceVersion") != before:
            raise ApiError(409, "Conflict", "the object has been modified")
        self.writes += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.writes)
        return copy.deepcopy(self.lease)

    def _respond(self) -> None:
        if self.away:
            raise ApiError(0, "Unreachable", "no response from the API server")
