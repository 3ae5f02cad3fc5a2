"""The Deployment controller of the local runtime: keeps as many pods as desired, of the current template.

There are no ReplicaSets. An engine's Deployment never changes its template; a router's may, and then a pod of the new
template is ready before one of the old terminates (``maxSurge`` 1, ``maxUnavailable`` 0): they share the Service's
socket.
"""

from __future__ import annotations

import hashlib
import json

from blade_operator.cluster.local import clock
from blade_operator.cluster.local.events import Events
from blade_operator.cluster.local.pod_objects import PodObjects
from blade_operator.cluster.local.pod_status import is_ready, is_terminating, ready_since, restarts
from blade_operator.cluster.local.services import Services
from blade_operator.cluster.local.store import Store
from blade_operator.model.objects import Object, Ref
from blade_protocol.labels import DELETION_COST

TEMPLATE_HASH = "pod-template-hash"
SURGE = 1
"""Pods beyond the replica count during a rolling update."""


class Deployments:
    """The Deployment controller; ``sync`` creates and deletes Pod objects as the Deployments require."""

    def __init__(self, store: Store, events: Events, services: Services) -> None:
        self._store = store
        self._pods = PodObjects(store, events, services)

    def sync(self) -> None:
        """Create and delete pods, and write the statuses of Deployments."""
        for deployment in self._store.find("Deployment"):
            self._sync(deployment)

    def _sync(self, deployment: Object) -> None:
        active = [pod for pod in self._pods.of(deployment) if not is_terminating(pod)]
        template = template_hash(deployment)
        current = [pod for pod in active if pod["metadata"]["labels"][TEMPLATE_HASH] == template]
        desired = deployment["spec"].get("replicas", 1)
        stale = [pod for pod in active if pod not in current]
        surplus = sum(map(is_ready, active)) - desired
        outdated = [pod for pod in stale if not is_ready(pod)]
        outdated += sorted(filter(is_ready, stale), key=_deletion_order)[: max(0, surplus)]
        to_delete = outdated + sorted(current, key=_deletion_order)[: max(0, len(current) - desired)]
        for pod in to_delete:
            self._pods.delete(deployment, pod)
        current = [pod for pod in current if pod not in to_delete]
        kept = len(stale) - len(outdated)
        for _ in range(min(desired, desired + SURGE - kept) - len(current)):
            current.append(self._pods.create(deployment, {TEMPLATE_HASH: template}))
        old = [pod for pod in stale if pod not in to_delete]
        self._store.write_status(Ref.of(deployment), _status(deployment, current, old))


def template_hash(deployment: Object) -> str:
    """Hash of the pod template, ten hexadecimal digits."""
    text = json.dumps(deployment["spec"]["template"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _deletion_order(pod: Object) -> tuple[bool, int, float, int, float, str]:
    """Sort key of Kubernetes: not ready, low deletion cost, ready for the shortest time, many restarts, young."""
    cost = int((pod["metadata"].get("annotations") or {}).get(DELETION_COST, "0"))
    since = clock.parse(ready_since(pod)).timestamp() if ready_since(pod) else 0.0
    created = clock.parse(pod["metadata"]["creationTimestamp"]).timestamp()
    return (is_ready(pod), cost, -since, -restarts(pod), -created, pod["metadata"]["name"])


def _status(deployment: Object, current: list[Object], old: list[Object]) -> Object:
    desired = deployment["spec"].get("replicas", 1)
    ready = sum(map(is_ready, current + old))
    available = ready >= desired
    known = {entry["type"]: entry for entry in deployment.get("status", {}).get("conditions", [])}
    conditions = [
        ("Available", available, "MinimumReplicasAvailable" if available else "MinimumReplicasUnavailable"),
        ("Progressing", True, "NewReplicaSetAvailable" if available and not old else "ReplicaSetUpdated"),
    ]
    return {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": len(current + old),
        "updatedReplicas": len(current),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(0, desired - ready),
        "conditions": [_condition(known.get(name), name, holds, reason) for name, holds, reason in conditions],
    }


def _condition(known: Object | None, name: str, holds: bool, reason: str) -> Object:
    status = "True" if holds else "False"
    since = known["lastTransitionTime"] if known is not None and known["status"] == status else clock.stamp(clock.now())
    return {"type": name, "status": status, "reason": reason, "lastTransitionTime": since}
