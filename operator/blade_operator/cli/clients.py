"""Where commands find services: the local runtime, or a Kubernetes cluster (`cluster_client`)."""

from __future__ import annotations

from typing import Protocol

from blade_operator.cli.errors import Changed, CommandError
from blade_operator.cluster.local.commands import resource, send
from blade_operator.cluster.local.errors import Changed as ChangedHere
from blade_operator.cluster.local.layout import Layout
from blade_operator.cluster.local.store import matches, read_objects
from blade_operator.model.objects import Object
from blade_protocol.labels import KIND, NAME


class Client(Protocol):
    """Reads services and their revisions, and changes services."""

    def service(self, namespace: str, name: str) -> Object:
        """The LLMService. Raises `CommandError` when there is none."""

    def revisions(self, namespace: str, name: str) -> list[Object]:
        """The ControllerRevisions of a service."""

    def replace(self, service: Object) -> None:
        """Write ``service`` in place of what was read. Raises `Changed` where it has changed meanwhile."""


class LocalClient:
    """The local runtime's files, and its control loop for changes."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def service(self, namespace: str, name: str) -> Object:
        """See `Client`."""
        for obj in read_objects(self._layout.objects, KIND):
            if (obj["metadata"]["namespace"], obj["metadata"]["name"]) == (namespace, name):
                return obj
        raise CommandError(f'{resource(KIND)} "{name}" not found')

    def revisions(self, namespace: str, name: str) -> list[Object]:
        """See `Client`."""
        found = read_objects(self._layout.objects, "ControllerRevision")
        return [obj for obj in found if obj["metadata"]["namespace"] == namespace and matches(obj, {NAME: name})]

    def replace(self, service: Object) -> None:
        """See `Client`."""
        try:
            send(self._layout, "replace", obj=service)
        except ChangedHere as error:
            raise Changed(str(error)) from error
