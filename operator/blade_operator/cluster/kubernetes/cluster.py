"""``Cluster`` for a Kubernetes API server: what the control loop reads and writes."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime

from blade_operator import metrics
from blade_operator.cluster import MOST_ADAPTERS, Rejected
from blade_operator.cluster.change_queue import ChangeQueue
from blade_operator.cluster.kubernetes.api import APPLY, JSON_PATCH, MERGE, WRITE_TIMEOUT, Api, ApiError
from blade_operator.cluster.kubernetes.event_budget import EventBudget
from blade_operator.cluster.kubernetes.events import event_object
from blade_operator.cluster.kubernetes.informer_cache import InformerCache
from blade_operator.cluster.kubernetes.installations import Installations
from blade_operator.cluster.kubernetes.kinds import ADAPTER, EVENT, KINDS, SERVICE, path_of
from blade_operator.cluster.kubernetes.watching.scopes import Scopes
from blade_operator.model.controllers import LEADER_WORKER_SET, STATEFUL_SET
from blade_operator.model.installation import claimed
from blade_operator.model.objects import Key, Object, Ref
from blade_operator.model.observed import Observed
from blade_operator.model.plan import EventRecord, Prune
from blade_protocol.labels import KIND, MANAGED_BY, MANAGER, NAME

_APPLY = {"fieldManager": MANAGER, "force": "true"}
_REFUSALS = (400, 403, 413, 422)
"""Responses that stay the same until someone changes the object, a quota or a permission."""
_REFUSAL_MESSAGES = ("failed to create typed patch object", "failed calling webhook")
"""Said with a 500: of a field that the kind does not have, and for an admission webhook that does not respond."""
_NO_SUCH_PLACE = "the server rejected our request due to an error in our request"
"""Said with a 422, of a JSON patch that does not apply."""
_TRIES = 3
"""Writes of a status that others write, too, before the next reconcile goes on with it."""
_GROUPS = (STATEFUL_SET, LEADER_WORKER_SET)
_SEPARATE_KINDS = ("Deployment", "Pod", "Service", "ConfigMap", "ControllerRevision")


class KubernetesCluster:
    """Implements `blade_operator.cluster.Cluster` with what is in the informer cache.

    `Supervisor` and `Sweeper` keep that up to date.
    """

    def __init__(self, api: Api, namespaces: Sequence[str] = (), installation: str = "") -> None:
        self._api = api
        self._installation = installation
        self._installations = Installations(api)
        self._event_budget = EventBudget()
        self.cache = InformerCache()
        self.scopes = Scopes(namespaces)

    async def changes(self) -> AsyncIterator[Key]:
        """See `Cluster.changes`. Begins when everything has been seen."""
        await self.scopes.wait_synced()
        pending = ChangeQueue(self.cache.services())
        self.cache.subscribe(pending.add)
        self.scopes.subscribe(lambda namespace: self._note_all(namespace, pending))
        async for key in pending:
            yield key

    def _note_all(self, namespace: str, pending: ChangeQueue) -> None:
        for key in self.cache.services():
            if key.namespace == namespace:
                pending.add(key)

    async def observe(self, key: Key) -> Observed | None:
        """See `Cluster.observe`. A service is not there until its namespace has been seen completely."""
        found = self.cache.children(key)
        if KIND not in found or self.scopes.is_incomplete(key.namespace):
            return None
        [service] = found.pop(KIND)
        groups = tuple(obj for kind in _GROUPS for obj in found.pop(kind, ()))
        deployments, pods, services, config_maps, revisions = (tuple(found.pop(kind, ())) for kind in _SEPARATE_KINDS)
        others = tuple(obj for objs in found.values() for obj in objs)
        adapters = self.lora_adapters(key.namespace)
        observed = Observed(
            service,
            deployments,
            groups,
            pods,
            services,
            config_maps,
            revisions,
            others,
            adapters,
            has_leader_worker_sets=self.scopes.has(KINDS[LEADER_WORKER_SET]),
        )
        owner = claimed(service)
        if self._installation and owner not in ("", self._installation):
            observed = dataclasses.replace(observed, abandoned=await self._installations.is_gone(owner))
        return observed

    async def apply(self, obj: Object) -> None:
        """See `Cluster.apply`."""
        ref = Ref.of(obj)
        known = self.cache.get(ref)
        try:
            if not KINDS[ref.kind].watched:
                await self._create(ref, obj)
            else:
                if known is None and ref.kind == "Pod":
                    return  # it is gone
                if known is None:
                    await self._check_ownership(ref, obj)
                else:
                    obj = _pinned(obj, known.unpack()["metadata"]["uid"])
                written = await self._api.write(
                    "PATCH", path_of(ref), obj, kind=ref.kind, content_type=APPLY, params=_APPLY
                )
                self.cache.put(written)
        except ApiError as error:
            if known is not None and _was_replaced(error):
                return  # not what was observed any more: its event is on the way, and triggers a reconcile
            if error.status in _REFUSALS or any(words in str(error) for words in _REFUSAL_MESSAGES):
                raise Rejected(str(error)) from error
            if error.status == 404 and not self.scopes.has(KINDS[ref.kind]):
                raise Rejected(
                    f"the cluster has no {KINDS[ref.kind].plural}.{KINDS[ref.kind].group}: install what it comes with, "
                    "or run the operator with another --group_kind (the chart's groups.kind)"
                ) from error
            raise

    async def replace(self, obj: Object) -> None:
        """See `Cluster.replace`. A PUT tells nothing of what was there before; the response to a patch would."""
        ref = Ref.of(obj)
        try:
            try:
                await self._api.write("PUT", path_of(ref), obj, kind=ref.kind)
            except ApiError as error:
                if error.status != 404:
                    raise
                await self._create(ref, obj)
        except ApiError as error:
            if error.status in _REFUSALS:
                raise Rejected(str(error)) from error
            raise

    async def prune(self, prune: Prune) -> None:
        """See `Cluster.prune`. Places in lists are those of the cached version, so the server must have that one."""
        record = self.cache.get(prune.ref)
        if record is None:
            return
        unchanged: Object = {"op": "replace", "path": "/metadata/resourceVersion", "value": str(record.version)}
        operations = [unchanged, *({"op": "remove", "path": path} for path in prune.paths)]
        try:
            written = await self._api.write(
                "PATCH", path_of(prune.ref), operations, kind=prune.ref.kind, content_type=JSON_PATCH
            )
        except ApiError as error:
            if error.status in (404, 409) or _NO_SUCH_PLACE in str(error):
                return  # it has changed: its event is on the way
            if error.status in _REFUSALS:
                raise Rejected(str(error)) from error
            raise
        self.cache.put(written)

    async def _check_ownership(self, ref: Ref, obj: Object) -> None:
        """Raises `Rejected` where something of that name is not the service's: to apply would take it over.

        Only objects with the operator's labels are watched, so an unknown one has to be fetched. Where the labels were
        taken away by hand, its owner reference still shows it.
        """
        found = await self._fetch(ref)
        if found is not None and not _is_ours(found["metadata"], obj["metadata"]):
            raise Rejected(
                f"another {ref.kind} of this name is there, which does not belong to the service: "
                "delete or rename it, or give the service another name"
            )

    async def _fetch(self, ref: Ref) -> Object | None:
        """What is there now. It is listed by name: that needs no further right."""
        params = {"fieldSelector": f"metadata.name={ref.name}", "limit": "1"}
        path = KINDS[ref.kind].path(ref.namespace)
        found = await self._api.get(path, params, kind=ref.kind, timeout=WRITE_TIMEOUT)
        return next(iter(found["items"]), None)

    async def _create(self, ref: Ref, obj: Object) -> None:
        """Create what may not be read back, unless it is there: the response to a patch would show all of it."""
        try:
            await self._api.write("POST", KINDS[ref.kind].path(ref.namespace), obj, kind=ref.kind)
        except ApiError as error:
            if error.status != 409:
                raise

    async def delete(self, ref: Ref) -> None:
        """See `Cluster.delete`. Deletes the very object that was observed, not a later one of the same name."""
        record = self.cache.get(ref)
        if record is None:
            return
        uid = record.unpack()["metadata"]["uid"]
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid},
            "propagationPolicy": "Background",
        }
        try:
            await self._api.write("DELETE", path_of(ref), body, kind=ref.kind)
        except ApiError as error:
            if error.status == 404:
                self.cache.remove(ref, record.version)
            elif error.status != 409:
                raise

    async def claim(self, key: Key, before: Object, status: Object) -> bool:
        """See `Cluster.claim`. The server compares versions, so of two installations one is refused."""
        record = self.cache.get(Ref(KIND, key.namespace, key.name))
        if record is None or (record.unpack().get("status") or {}) != before:
            return False
        return await self._write_status(key, status, str(record.version))

    async def write_status(self, key: Key, status: Object) -> None:
        """See `Cluster.write_status`. The object is gone, or another of its name is there: nothing is written."""
        await self._write_status(key, status)

    async def _write_status(self, key: Key, status: Object, version: str | None = None) -> bool:
        """Whether it was written; with ``version`` only to that version of the object."""
        ref = Ref(KIND, key.namespace, key.name)
        record = self.cache.get(ref)
        if record is None:
            return False
        service = record.unpack()
        metadata = {"uid": service["metadata"]["uid"], **({"resourceVersion": version} if version else {})}
        body = {"metadata": metadata, "status": replacing(service.get("status"), status)}
        path = f"{path_of(ref)}/status"
        try:
            written = await self._api.write("PATCH", path, body, kind=SERVICE.name, content_type=MERGE)
        except ApiError as error:
            if error.status == 404:
                self.cache.remove(ref, record.version)
            elif error.status != 409:
                raise
            return False
        self.cache.put(written)
        return True

    def lora_adapters(self, namespace: str) -> tuple[Object, ...]:
        """See `Cluster.lora_adapters`. None of a namespace that has not been seen completely."""
        if self.scopes.is_incomplete(namespace):
            return ()
        return tuple(self.cache.lora_adapters(namespace, MOST_ADAPTERS))

    async def update_adapter_status(self, ref: Ref, change: Callable[[Object], Object]) -> None:
        """See `Cluster.update_adapter_status`. Services share such a status: it is written to the very version that it
        was made of, and made again where another one was quicker."""
        record = self.cache.get(ref)
        obj = record.unpack() if record is not None else None
        version = str(record.version) if record is not None else ""
        for _ in range(_TRIES):
            if obj is None:
                return
            metadata = {"uid": obj["metadata"]["uid"], "resourceVersion": version}
            body = {"metadata": metadata, "status": replacing(obj.get("status"), change(obj))}
            path = f"{path_of(ref)}/status"
            try:
                self.cache.put(await self._api.write("PATCH", path, body, kind=ADAPTER.name, content_type=MERGE))
                return
            except ApiError as error:
                if error.status == 404:
                    return
                if error.status != 409:
                    raise
            obj = await self._fetch(ref)
            version = obj["metadata"]["resourceVersion"] if obj is not None else ""

    async def emit(self, key: Key, event: EventRecord) -> None:
        """See `Cluster.emit`. An Event nobody may write, as in a namespace that is being deleted, is left out, as is
        one of a service that had too many."""
        record = self.cache.get(Ref(KIND, key.namespace, key.name))
        if record is None:
            return
        if not self._event_budget.take(key):
            metrics.EVENTS.labels("dropped").inc()
            return
        metrics.EVENTS.labels("emitted").inc()
        body = event_object(record.unpack(), record.version, event, datetime.now(UTC))
        try:
            await self._api.write("POST", EVENT.path(key.namespace), body, kind=EVENT.name)
        except ApiError as error:
            if error.status not in (403, 404, 409):
                raise


def _pinned(obj: Object, uid: str) -> Object:
    """``obj`` as a change of the very object that was observed: an apply must not bring a deleted one back."""
    return {**obj, "metadata": {**obj["metadata"], "uid": uid}}


def _was_replaced(error: ApiError) -> bool:
    """Whether the object an apply was pinned to is gone (409), or has been replaced by one of its name (422)."""
    return error.status == 409 or (error.status == 422 and "metadata.uid: Invalid value" in str(error))


def _is_ours(found: Object, wanted: Object) -> bool:
    labels, mine = found.get("labels") or {}, wanted["labels"]
    owners = {owner["uid"] for owner in found.get("ownerReferences") or ()}
    return all(labels.get(name) == mine[name] for name in (MANAGED_BY, NAME)) or bool(
        owners & {owner["uid"] for owner in wanted["ownerReferences"]}
    )


def replacing(before: Object | None, after: Object) -> Object:
    """A JSON merge patch (RFC 7396) that leaves ``after`` and nothing else of ``before``; lists are replaced whole."""
    patch: Object = {name: None for name in before or {} if name not in after}
    for name, value in after.items():
        old = (before or {}).get(name)
        patch[name] = replacing(old if isinstance(old, dict) else None, value) if isinstance(value, dict) else value
    return patch
