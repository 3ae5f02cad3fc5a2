"""The local runtime: its files, and its control loop for what changes something."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final

from blade_operator.cli import manifests
from blade_operator.cli.clients import LocalClient
from blade_operator.cli.errors import CommandError
from blade_operator.cluster.local.commands import resource, send
from blade_operator.cluster.local.errors import NotFound as NothingThere
from blade_operator.cluster.local.layout import Layout
from blade_operator.cluster.local.logs import ContainerLogs, Follower
from blade_operator.cluster.local.store import matches, read_objects
from blade_operator.kubectl.places.place import LogRange, NotFound, Reached, port_number
from blade_operator.model.objects import Object
from blade_operator.model.pods import container, containers

_POLL: Final = 0.2
LOCALHOST: Final = "127.0.0.1"


class LocalPlace:
    """See `place.Place`."""

    local = True
    namespace = "default"

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def __enter__(self) -> LocalPlace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def get(self, kind: str, namespace: str, name: str) -> Object:
        """See `place.Place`."""
        for obj in self.list(kind, namespace):
            if obj["metadata"]["name"] == name:
                return obj
        raise NotFound(f'{resource(kind)} "{name}" not found')

    def list(self, kind: str, namespace: str | None, labels: Mapping[str, str] | None = None) -> list[Object]:
        """See `place.Place`."""
        found = [obj for obj in read_objects(self._layout.objects, kind) if matches(obj, labels or {})]
        return [obj for obj in found if namespace in (None, obj["metadata"]["namespace"])]

    def log(self, pod: Object, container: str, part: LogRange) -> bytes:
        """See `place.Place`."""
        logs, attempt = self._logs(pod, container)
        if part.previous and attempt == 0:
            name = pod["metadata"]["name"]
            raise CommandError(f'previous terminated container "{container}" in pod "{name}" not found')
        data = Follower(logs, attempt - part.previous, to_next=False).poll() or b""
        data = _tail(data, part.tail)
        return data if part.limit is None else data[: part.limit]

    def follow(self, pod: Object, container: str, tail: int | None) -> Iterator[bytes]:
        """See `place.Place`."""
        logs, attempt = self._logs(pod, container)
        follower, first = Follower(logs, attempt, to_next=True), True
        while (data := follower.poll()) is not None:
            yield _tail(data, tail) if first else data
            first = False
            time.sleep(_POLL)

    @contextlib.contextmanager
    def reach(self, pod: Object, port: str) -> Iterator[Reached]:
        """See `place.Place`."""
        yield Reached(f"{pod.get('status', {}).get('podIP') or LOCALHOST}:{port_number(pod, port)}")

    def create(self, obj: Object) -> None:
        """See `place.Place`."""
        manifests.admit(obj)
        send(self._layout, "apply", obj=obj)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """See `place.Place`."""
        with contextlib.suppress(NothingThere):
            send(self._layout, "delete", kind=kind, namespace=namespace, name=name)

    def client(self) -> LocalClient:
        """See `place.Place`."""
        return LocalClient(self._layout)

    def versions(self) -> dict[str, str]:
        """See `place.Place`."""
        return {"local runtime": str(self._layout.root)}

    def _logs(self, pod: Object, name: str) -> tuple[ContainerLogs, int]:
        state = container(pod, name)
        if state is None:
            known = ", ".join(each.name for each in containers(pod)) or "none yet"
            raise CommandError(f'container "{name}" is not in pod "{pod["metadata"]["name"]}": it has {known}')
        return ContainerLogs(self._layout.pod(pod) / "logs" / name), state.restarts


def _tail(data: bytes, lines: int | None) -> bytes:
    if lines is None:
        return data
    return b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""
