"""A fake Kubernetes API server: lists and watches of a few objects, over TLS.

It keeps a history as the real one does, so that a watch can be continued, or refused with 410 when its version has
expired; and it can fail in every way a test sets. It validates no object. The keys beside it are worth nothing outside
this folder.
"""

import asyncio
import copy
import json
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from blade_router.kubernetes import Cluster

TLS = Path(__file__).parent / "tls"
NAMESPACE = "demo-ns"
SLICES, CONFIG_MAPS, SECRETS = "endpointslices", "configmaps", "secrets"
PATHS = {
    f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices": SLICES,
    f"/api/v1/namespaces/{NAMESPACE}/configmaps": CONFIG_MAPS,
    f"/api/v1/namespaces/{NAMESPACE}/secrets": SECRETS,
}
Object = dict[str, Any]


@dataclass
class ApiRequest:
    """One request as it arrived."""

    kind: str
    query: dict[str, str]
    token: str

    @property
    def watch(self) -> bool:
        return "watch" in self.query


@dataclass(eq=False)
class _Watch:
    request: ApiRequest
    events: asyncio.Queue[bytes | None]
    """``None``: break the connection."""


@dataclass
class FakeApi:
    """Start with ``async with``; ``folder`` becomes the ServiceAccount a pod would have mounted."""

    folder: Path
    token: str = "token-1"
    """The only token that is accepted."""
    silent: bool = False
    """Open watches get no more events."""
    refuse: int = 0
    """The status of every response; 0: none is refused."""
    requests: list[ApiRequest] = field(default_factory=list)
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    version: int = 100
    port: int = 0
    _oldest: int = 0
    _history: list[tuple[int, str, Object]] = field(default_factory=list)
    _watches: list[_Watch] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "namespace").write_text(NAMESPACE)
        (self.folder / "token").write_text(self.token)
        (self.folder / "ca.crt").write_bytes((TLS / "ca.crt").read_bytes())
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    @property
    def cluster(self) -> Cluster:
        return Cluster("127.0.0.1", self.port, self.folder)

    async def start(self) -> None:
        """Listen; after ``stop`` on the same port as before."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(TLS / "server.pem")
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """The machine is gone: the port closes and every watch breaks."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # called by tests

    def put(self, kind: str, name: str, **content: Any) -> None:
        """Create or replace an object."""
        event = "MODIFIED" if (kind, name) in self.objects else "ADDED"
        found = {"metadata": {"name": name, "labels": content.pop("labels", {})}, **content}
        self.objects[kind, name] = found
        self._happen(kind, event, found)

    def delete(self, kind: str, name: str) -> None:
        self._happen(kind, "DELETED", self.objects.pop((kind, name)))

    def bookmark(self) -> None:
        """Send a bookmark to every watch."""
        for watch in self._watches:
            watch.events.put_nowait(_event("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}))

    def forget(self) -> None:
        """Expire the history: no watch can be continued from a version before this one."""
        self._oldest = self.version
        self._history.clear()

    def cut(self, rest: bytes = b"") -> None:
        """Break every watch, after these bytes."""
        for watch in self._watches:
            if rest:
                watch.events.put_nowait(rest)
            watch.events.put_nowait(None)

    def end(self) -> None:
        """End every watch in good order, as the server does now and then."""
        for watch in self._watches:
            watch.events.put_nowait(b"")

    def count(self, kind: str, *, watch: bool) -> int:
        """The number of list, or watch, requests."""
        return sum(request.kind == kind and request.watch == watch for request in self.requests)

    # internal

    def _happen(self, kind: str, event: str, found: Object) -> None:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        found = copy.deepcopy(found)
        self._history.append((self.version, kind, {"type": event, "object": found}))
        if self.silent:
            return
        for watch in self._watches:
            if watch.request.kind == kind and _matches(watch.request.query, found):
                watch.events.put_nowait(_event(event, found))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # its handshake ended after ``stop``
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._respond(reader, writer)
                await writer.drain()
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort() if self._server is None else writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request_line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        target = urlsplit(request_line.split(" ")[1])
        token = headers.get("authorization", "").removeprefix("bearer ")
        request = ApiRequest(PATHS[target.path], dict(parse_qsl(target.query)), token)
        self.requests.append(request)
        status = self.refuse or (200 if token == self.token else 401)
        if status != 200:
            writer.write(_response(status, {"kind": "Status", "message": f"you get {status}", "code": status}))
        elif request.watch:
            await self._stream(request, writer)
        else:
            items = [each for (kind, _), each in self.objects.items() if kind == request.kind]
            found = [each for each in items if _matches(request.query, each)]
            writer.write(_response(200, {"metadata": {"resourceVersion": str(self.version)}, "items": found}))

    async def _stream(self, request: ApiRequest, writer: asyncio.StreamWriter) -> None:
        since = int(request.query["resourceVersion"])
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        if since < self._oldest:
            gone = {"kind": "Status", "message": f"too old resource version: {since}", "code": 410}
            writer.write(_chunk(_event("ERROR", gone)) + _chunk(b""))
            return
        watch = _Watch(request, asyncio.Queue())
        for version, kind, past in self._history:
            if version > since and kind == request.kind and _matches(request.query, past["object"]):
                watch.events.put_nowait(_event(past["type"], past["object"]))
        self._watches.append(watch)
        try:
            while (event := await watch.events.get()) is not None:
                writer.write(_chunk(event))
                await writer.drain()
                if not event:
                    break
        finally:
            self._watches.remove(watch)

    @property
    def watching(self) -> int:
        """The number of open watches."""
        return len(self._watches)


def _matches(query: dict[str, str], found: Object) -> bool:
    metadata = found["metadata"]
    if selector := query.get("fieldSelector"):
        return bool(selector == f"metadata.name={metadata['name']}")
    label, _, value = query["labelSelector"].partition("=")
    return bool(metadata["labels"].get(label) == value)


def _event(kind: str, found: Object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _response(status: int, found: Object) -> bytes:
    body = json.dumps(found).encode()
    return b"HTTP/1.1 %d Fake\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(body), body)
