"""The local runtime as a `Cluster`: reads and writes of the controller become reads and writes of the store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from blade_operator.cluster import MOST_ADAPTERS
from blade_operator.cluster.change_queue import ChangeQueue
from blade_operator.cluster.local.events import Events
from blade_operator.cluster.local.fields import require_supported
from blade_operator.cluster.local.store import Store
from blade_operator.model.objects import Key, Object, Ref
from blade_operator.model.observed import Observed
from blade_operator.model.plan import EventRecord, Prune
from blade_protocol.labels import ADAPTER_KIND, KIND, MANAGER, NAME

_OBSERVED_BY_KIND = ("Deployment", "StatefulSet", "Pod", "Service", "ConfigMap", "ControllerRevision")
_OTHERS = (
    "Secret",
    "PodDisruptionBudget",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "NetworkPolicy",
    "PersistentVolumeClaim",
)


class LocalCluster:
    """Implements `blade_operator.cluster.Cluster` on a `Store`."""

    def __init__(self, store: Store, events: Events) -> None:
        self._store = store
        self._events = events

    async def changes(self) -> AsyncIterator[Key]:
        """See `Cluster.changes`."""
        changed = ChangeQueue(
            Key(service["metadata"]["namespace"], service["metadata"]["name"]) for service in self._store.find(KIND)
        )

        def enqueue(obj: Object) -> None:
            if obj["kind"] == ADAPTER_KIND:
                for selecting in self._selecting(obj["metadata"]["namespace"]):
                    changed.add(selecting)
                return
            key = _service_of(obj)
            if key is not None:
                changed.add(key)

        self._store.subscribe(enqueue)
        async for key in changed:
            yield key

    def _selecting(self, namespace: str) -> list[Key]:
        """The services of a namespace that select LoRAAdapters."""
        services = self._store.find(KIND, namespace)
        return [
            Key(namespace, service["metadata"]["name"])
            for service in services
            if service["spec"].get("adapterSelector") is not None
        ]

    def lora_adapters(self, namespace: str) -> tuple[Object, ...]:
        """See `Cluster.lora_adapters`."""
        return tuple(self._store.find(ADAPTER_KIND, namespace)[:MOST_ADAPTERS])

    async def update_adapter_status(self, ref: Ref, change: Callable[[Object], Object]) -> None:
        """See `Cluster.update_adapter_status`."""
        if (obj := self._store.get(ref)) is not None:
            self._store.write_status(ref, change(obj))

    async def observe(self, key: Key) -> Observed | None:
        """See `Cluster.observe`."""
        service = self._store.get(Ref(KIND, key.namespace, key.name))
        if service is None:
            return None

        def children(kind: str) -> tuple[Object, ...]:
            return tuple(self._store.find(kind, key.namespace, {NAME: key.name}))

        deployments, stateful_sets, pods, services, config_maps, revisions = map(children, _OBSERVED_BY_KIND)
        others = tuple(obj for kind in _OTHERS for obj in children(kind))
        adapters = self.lora_adapters(key.namespace)
        return Observed(service, deployments, stateful_sets, pods, services, config_maps, revisions, others, adapters)

    async def apply(self, obj: Object) -> None:
        """See `Cluster.apply`.

        Raises:
            UnsupportedField: the local runtime cannot run this object as it is meant.
        """
        require_supported(obj)
        if obj["kind"] != "Pod" or self._store.get(Ref.of(obj)) is not None:
            self._store.apply(obj, MANAGER)

    async def replace(self, obj: Object) -> None:
        """See `Cluster.replace`."""
        await self.apply(obj)

    async def prune(self, prune: Prune) -> None:
        """See `Cluster.prune`."""

        def remove(obj: Object) -> None:
            for path in prune.paths:
                *parents, last = path.lstrip("/").split("/")
                place: Any = obj
                for step in parents:
                    place = place[int(step)] if isinstance(place, list) else place[step]
                del place[int(last)]

        if self._store.get(prune.ref) is not None:
            self._store.update(prune.ref, remove)

    async def delete(self, ref: Ref) -> None:
        """See `Cluster.delete`."""
        self._store.delete(ref)

    async def claim(self, key: Key, before: Object, status: Object) -> bool:
        """See `Cluster.claim`."""
        ref = Ref(KIND, key.namespace, key.name)
        service = self._store.get(ref)
        unchanged = service is not None and (service.get("status") or {}) == before
        return unchanged and self._store.write_status(ref, status)

    async def write_status(self, key: Key, status: Object) -> None:
        """See `Cluster.write_status`."""
        self._store.write_status(Ref(KIND, key.namespace, key.name), status)

    async def emit(self, key: Key, event: EventRecord) -> None:
        """See `Cluster.emit`."""
        service = self._store.get(Ref(KIND, key.namespace, key.name))
        if service is not None:
            self._events.record(service, event.type, event.reason, event.message, "llmservice-controller")


def _service_of(obj: Object) -> Key | None:
    """Key of the service that ``obj`` is or belongs to; None for an Event, which no reconcile needs."""
    metadata = obj["metadata"]
    if obj["kind"] == KIND:
        return Key(metadata["namespace"], metadata["name"])
    name = (metadata.get("labels") or {}).get(NAME)
    return Key(metadata["namespace"], name) if name and obj["kind"] != "Event" else None
