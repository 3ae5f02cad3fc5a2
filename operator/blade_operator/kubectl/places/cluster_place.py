"""A Kubernetes cluster, with the rights of a kubeconfig: its API server's objects, logs and port-forwards.

The requests run on an event loop in a thread of their own, so commands are written without asyncio, and a port-forward
works while a command waits for its user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Coroutine, Iterator, Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, TypeVar

from kubernetes.aio.config import ConfigException

from blade_operator.cli.cluster_client import FIELD_MANAGER, ClusterClient
from blade_operator.cli.errors import CommandError
from blade_operator.cluster.kubernetes.api import Api, ApiError, context_namespace, load_configuration
from blade_operator.cluster.kubernetes.fence import WriteFence
from blade_operator.cluster.kubernetes.kinds import JOB, KINDS, Kind
from blade_operator.cluster.kubernetes.port_forward import PortForward
from blade_operator.kubectl.places.place import LogRange, NotFound, Reached, has_kubeconfig, port_number
from blade_operator.model.objects import Object

T = TypeVar("T")
TIMEOUT: Final = 20.0
"""Seconds that the API server has for a response."""
_MARGIN: Final = 10.0
"""Seconds beyond that, for a program of the kubeconfig that gets the credentials."""
_IDLE: Final = 0.5
_PIECES: Final = 64
"""Of a log, read ahead of what is printed."""
_KINDS: Final = {**KINDS, JOB.name: JOB}


class ClusterPlace:
    """See `place.Place`."""

    local = False

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        self._kubeconfig = os.path.expanduser(kubeconfig) if kubeconfig else None
        self._context = context
        if self._kubeconfig and not os.path.exists(self._kubeconfig):
            raise CommandError(f"--kubeconfig {self._kubeconfig}: there is no such file")
        if not self._kubeconfig and not has_kubeconfig():
            raise CommandError("no way to a cluster: there is no kubeconfig; give --kubeconfig, or set $KUBECONFIG")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubernetes", daemon=True)
        self._api: Api | None = None
        try:
            self.namespace = context_namespace(self._kubeconfig, context)
        except (ConfigException, OSError) as error:
            raise self._no_way(error) from error

    def __enter__(self) -> ClusterPlace:
        self._thread.start()
        self._api = self._run(self._connect())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._api is not None:
            with contextlib.suppress(CommandError):
                self._run(self._api.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def get(self, kind: str, namespace: str, name: str) -> Object:
        """See `place.Place`."""
        path = _KINDS[kind].path(namespace, name)
        return _named(self._run(self._opened.get(path, kind=kind, timeout=TIMEOUT)), _KINDS[kind])

    def list(self, kind: str, namespace: str | None, labels: Mapping[str, str] | None = None) -> list[Object]:
        """See `place.Place`."""
        selector = ",".join(f"{name}={value}" for name, value in (labels or {}).items())
        params = {"labelSelector": selector} if selector else {}
        path = _KINDS[kind].path(namespace)
        try:
            listed = self._run(self._opened.get(path, params, kind=kind, timeout=TIMEOUT))
        except NotFound:
            return []  # a kind that this cluster does not know
        return [_named(obj, _KINDS[kind]) for obj in listed.get("items") or ()]

    def log(self, pod: Object, container: str, part: LogRange) -> bytes:
        """See `place.Place`."""
        params = {"container": container}
        params |= {"previous": "true"} if part.previous else {}
        params |= {"tailLines": str(part.tail)} if part.tail is not None else {}
        params |= {"limitBytes": str(part.limit)} if part.limit is not None else {}
        return self._run(self._opened.read(_log_path(pod), params, kind="Pod", accept="*/*", timeout=TIMEOUT))

    def follow(self, pod: Object, container: str, tail: int | None) -> Iterator[bytes]:
        """See `place.Place`."""
        params = {"container": container, "follow": "true"}
        params |= {"tailLines": str(tail)} if tail is not None else {}
        pieces: queue.Queue[bytes | Exception | None] = queue.Queue()
        room = asyncio.Semaphore(_PIECES)

        async def read() -> None:
            try:
                async for piece in self._opened.stream(_log_path(pod), params, kind="Pod"):
                    await room.acquire()  # whoever prints them may be slower, or paused by its user
                    pieces.put(piece)
                pieces.put(None)
            except ApiError as error:
                pieces.put(CommandError(str(error)))

        reading = asyncio.run_coroutine_threadsafe(read(), self._loop)
        try:
            while True:
                try:
                    piece = pieces.get(timeout=_IDLE)
                except queue.Empty:
                    yield b""
                    continue
                if piece is None:
                    return
                if isinstance(piece, Exception):
                    raise piece
                with contextlib.suppress(RuntimeError):  # the place was left, by Ctrl-C
                    self._loop.call_soon_threadsafe(room.release)
                yield piece
        finally:
            reading.cancel()

    @contextlib.contextmanager
    def reach(self, pod: Object, port: str) -> Iterator[Reached]:
        """See `place.Place`."""
        metadata = pod["metadata"]
        forward = PortForward(self._opened, metadata["namespace"], metadata["name"], port_number(pod, port))
        reached = _Forwarded(f"127.0.0.1:{self._run(forward.start())}", forward)
        try:
            yield reached
        finally:
            self._run(forward.stop())

    def create(self, obj: Object) -> None:
        """See `place.Place`."""
        kind = _KINDS[obj["kind"]]
        path, params = kind.path(obj["metadata"]["namespace"]), {"fieldManager": FIELD_MANAGER}
        api = self._opened
        self._run(api.write("POST", path, obj, kind=kind.name, params=params, timeout=TIMEOUT, guarded=False))

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """See `place.Place`."""
        path, body = _KINDS[kind].path(namespace, name), {"propagationPolicy": "Background"}
        with contextlib.suppress(NotFound):
            self._run(self._opened.write("DELETE", path, body, kind=kind, timeout=TIMEOUT, guarded=False))

    def client(self) -> ClusterClient:
        """See `place.Place`."""
        return ClusterClient(self._kubeconfig, self._context)

    def versions(self) -> dict[str, str]:
        """See `place.Place`."""
        found = self._run(self._opened.get("/version", kind="version", timeout=TIMEOUT))
        return {"kubernetes": str(found.get("gitVersion", "unknown"))}

    @property
    def _opened(self) -> Api:
        assert self._api is not None
        return self._api

    async def _connect(self) -> Api:
        try:
            return Api(await load_configuration(self._kubeconfig, self._context), WriteFence())
        except (ConfigException, OSError) as error:
            raise self._no_way(error) from error

    def _no_way(self, error: Exception) -> CommandError:
        hint = f" (--kubeconfig {self._kubeconfig})" if self._kubeconfig else "; give --kubeconfig, or set $KUBECONFIG"
        return CommandError(f"no way to a cluster: {error}{hint}")

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of ``call`` on the event loop of this place."""
        running = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return running.result(TIMEOUT + _MARGIN)
        except TimeoutError:
            raise CommandError(f"no response from the API server within {TIMEOUT + _MARGIN:g} s") from None
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise NotFound(str(error)) from error
            raise CommandError(str(error)) from error
        finally:
            running.cancel()


class _Forwarded(Reached):
    """A port-forward, whose problems come to be known with time."""

    def __init__(self, authority: str, forward: PortForward) -> None:
        self.authority = authority
        self._forward = forward

    @property
    def problem(self) -> str:  # type: ignore[override]
        return self._forward.problem


def _named(obj: Object, kind: Kind) -> Object:
    """``obj`` with its kind, which lists leave out."""
    return {"apiVersion": kind.api_version, "kind": kind.name, **obj}


def _log_path(pod: Object) -> str:
    return f"{KINDS['Pod'].path(pod['metadata']['namespace'], pod['metadata']['name'])}/log"
