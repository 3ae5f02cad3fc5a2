"""Where commands look and act: a Kubernetes cluster (`cluster_place`) or the local runtime (`local_place`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from blade_operator.cli.clients import Client
from blade_operator.cli.errors import CommandError
from blade_operator.model.objects import Object


class NotFound(CommandError):
    """There is no such object."""


@dataclass(slots=True)
class Reached:
    """A port of a pod, as it is reached from here."""

    authority: str
    """``HOST:PORT``."""
    problem: str = ""
    """Why a connection broke off on the way there; empty when nothing is known of it."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """Which part of a container's log."""

    previous: bool = False
    """Of the run before the last restart."""
    tail: int | None = None
    """Only so many lines, the last ones."""
    limit: int | None = None
    """At most so many bytes."""


class Place(Protocol):
    """Reads objects, logs and ports, and runs what takes a short while. Use it as a context manager.

    Every method raises `CommandError` when it is refused or gets no response in time.
    """

    namespace: str
    """That of commands that name none."""
    local: bool
    """Whether pods are processes of this machine."""

    def __enter__(self) -> Place: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def get(self, kind: str, namespace: str, name: str) -> Object:
        """One object. Raises `NotFound`."""

    def list(self, kind: str, namespace: str | None, labels: Mapping[str, str] | None = None) -> list[Object]:
        """All objects of a kind with ``labels``, of all namespaces without one; none where the kind is not known."""

    def log(self, pod: Object, container: str, part: LogRange) -> bytes:
        """The log of a container, so far."""

    def follow(self, pod: Object, container: str, tail: int | None) -> Iterator[bytes]:
        """The log as it grows, in pieces, until the container ends. An empty piece: nothing new for a while."""

    def reach(self, pod: Object, port: str) -> AbstractContextManager[Reached]:
        """A way to the port called ``port`` of a pod, while the context is open."""

    def create(self, obj: Object) -> None:
        """Create an object."""

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object and what belongs to it. One that is gone already is no error."""

    def client(self) -> Client:
        """What the rollout commands read and write with."""

    def versions(self) -> dict[str, str]:
        """The versions of what runs the pods."""


def port_number(pod: Object, name: str) -> int:
    """The number of the port called ``name``. Raises `CommandError` when the pod has none."""
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == name:
                return int(port["containerPort"])
    raise CommandError(f"pod {pod['metadata']['name']} has no port called {name}")


def has_kubeconfig() -> bool:
    """Whether kubectl would find a cluster by itself."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return True
    paths = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return any(os.path.exists(path) for path in paths.split(os.pathsep) if path)
