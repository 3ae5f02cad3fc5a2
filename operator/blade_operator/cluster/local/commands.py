"""Commands for a running control loop: one JSON line each way over a Unix socket in the state folder.

Only writes go this way. Reading needs no control loop: the objects are files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from blade_operator.cluster.local.errors import Changed, LocalError, NotFound
from blade_operator.cluster.local.layout import Layout
from blade_operator.cluster.local.store import Admit, Store
from blade_operator.model.objects import Object, Ref
from blade_operator.program import program
from blade_operator.spec import SpecError, check_change
from blade_protocol.labels import GROUP, KIND, OWN_KINDS

USER = "kubectl"
"""Field manager of manifests that users apply."""
_LINE_LIMIT = 16 * 1024 * 1024


class Commands:
    """Executes commands on the store. ``admit`` fills in defaults and rejects invalid objects (by raising)."""

    def __init__(self, store: Store, admit: Admit) -> None:
        self._store = store
        self._admit = admit

    def apply(self, obj: Object) -> str:
        """Apply a manifest; returns ``created``, ``configured`` or ``unchanged``."""
        self._admit(obj)  # before anything is filled in or merged, so that messages refer to the manifest as written
        live = self._store.get(Ref(obj["kind"], obj["metadata"].get("namespace", "default"), obj["metadata"]["name"]))

        return self._store.apply(obj, USER, lambda merged: self._admit_change(live, merged))[1]

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object.

        Raises:
            NotFound: there is none.
        """
        ref = Ref(kind, namespace, name)
        if self._store.get(ref) is None:
            raise NotFound(f'{resource(kind)} "{name}" not found')
        self._store.delete(ref)

    def scale(self, namespace: str, name: str, replicas: int) -> None:
        """Set ``spec.replicas`` of an LLMService.

        Raises:
            NotFound: there is none.
        """
        ref = Ref(KIND, namespace, name)
        if self._store.get(ref) is None:
            raise NotFound(f'{resource(KIND)} "{name}" not found')
        self._store.update(ref, lambda obj: obj["spec"].update(replicas=replicas), self._admit)

    def replace(self, obj: Object) -> None:
        """Write an LLMService in place of the version that it was read as.

        Raises:
            NotFound: there is none.
            Changed: it has changed since.
            LocalError: it may not become so.
        """
        ref = Ref(KIND, obj["metadata"]["namespace"], obj["metadata"]["name"])
        live = self._store.get(ref)
        if live is None:
            raise NotFound(f'{resource(KIND)} "{ref.name}" not found')
        if live["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            raise Changed(f'{resource(KIND)} "{ref.name}" has changed meanwhile: try again')

        def change(edited: Object) -> None:
            edited["spec"] = obj["spec"]
            edited["metadata"]["annotations"] = obj["metadata"].get("annotations") or {}

        self._store.update(ref, change, lambda edited: self._admit_change(live, edited))

    def _admit_change(self, live: Object | None, changed: Object) -> Object:
        """``changed`` with defaults, in place of ``live``. Raises LocalError where it may not become so."""
        filled = self._admit(changed)
        if live is not None and live["kind"] == "Job" and live["spec"] != filled["spec"]:
            raise LocalError(f'the Job "{live["metadata"]["name"]}" cannot be changed: delete it, or take another name')
        if live is not None and live["kind"] == KIND:
            try:
                check_change(live, filled)
            except SpecError as error:
                raise LocalError(f'the {KIND} "{live["metadata"]["name"]}" is invalid:\n  {error}') from error
        return filled


def resource(kind: str, *, plural: bool = True) -> str:
    """The resource name that kubectl prints for a kind: ``llmservices.serving.bladellm.io``, ``secrets``."""
    group = f".{GROUP}" if kind in OWN_KINDS else ".batch" if kind == "Job" else ""
    return kind.lower() + ("s" if plural else "") + group


@contextlib.asynccontextmanager
async def serve(layout: Layout, commands: Commands) -> AsyncIterator[None]:
    """Serve commands on the socket while the context is open."""
    verbs: dict[str, Callable[..., Any]] = {"apply": commands.apply, "delete": commands.delete, "scale": commands.scale}
    verbs["replace"] = commands.replace

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            try:
                if not (line := await reader.readline()):
                    return  # a client only checked whether the control loop runs
                request = json.loads(line)
                result: Object = {"result": verbs[request["verb"]](**request["arguments"])}
            except (LocalError, ValueError) as error:
                result = {"error": str(error), "changed": isinstance(error, Changed)}
            writer.write(json.dumps(result).encode() + b"\n")
            await writer.drain()

    layout.socket.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    with _short_path(layout) as path:
        listener.bind(path)
    server = await asyncio.start_unix_server(handle, sock=listener, limit=_LINE_LIMIT)
    try:
        yield
    finally:
        server.close()
        layout.socket.unlink(missing_ok=True)


def send(layout: Layout, verb: str, **arguments: Any) -> Any:
    """Have the running control loop execute one command.

    Raises:
        Changed: the object has changed since it was read.
        LocalError: no control loop runs, or it refused the command.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with _short_path(layout) as path:
                connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            name = "" if layout.root.name == "default" else f" --name {layout.root.name}"
            raise LocalError(
                f"no control loop runs on {layout.root}: start one with `{program()} local up{name}`"
            ) from None
        connection.sendall(json.dumps({"verb": verb, "arguments": arguments}).encode() + b"\n")
        with connection.makefile("rb") as lines:
            line = lines.readline()
    if not line:
        raise LocalError("the control loop ended before it answered; see its terminal")
    response = json.loads(line)
    if "error" in response:
        raise (Changed if response["changed"] else LocalError)(response["error"])
    return response["result"]


@contextlib.contextmanager
def _short_path(layout: Layout) -> Iterator[str]:
    """The socket's path in few characters: the kernel takes at most 107."""
    folder = os.open(layout.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{layout.socket.name}"
    finally:
        os.close(folder)
