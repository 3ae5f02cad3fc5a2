"""The Deployment controller of the local runtime: keeps as many pods as desired, of the current template.

There are no ReplicaSets. An engine's Deployment never changes its template; a router's may, and then a pod of the new
template is ready before one of the old terminates (``maxSurge`` 1, ``maxUnavailable`` 0): they share the Service's
socket.
"""

from __future__ import annotations

import copy
import hashlib
import json

from blade_operator.cluster.local import clock, ports
from blade_operator.cluster.local.events import Events
from blade_operator.cluster.local.fields import port_variable
from blade_operator.cluster.local.pod_status import is_ready, is_terminating, ready_since, restarts
from blade_operator.cluster.local.scheduler import NODE, wanted
from blade_operator.cluster.local.services import Services, pod_ports
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
        self._events = events
        self._services = services

    def sync(self) -> None:
        """Create and delete pods, and write the statuses of Deployments."""
        for deployment in self._store.find("Deployment"):
            self._sync(deployment)

    def _sync(self, deployment: Object) -> None:
        uid = deployment["metadata"]["uid"]
        namespace = deployment["metadata"]["namespace"]
        own = [pod for pod in self._store.find("Pod", namespace) if _owner(pod) == uid]
        active = [pod for pod in own if not is_terminating(pod)]
        template = template_hash(deployment)
        current = [pod for pod in active if pod["metadata"]["labels"][TEMPLATE_HASH] == template]
        desired = deployment["spec"].get("replicas", 1)
        stale = [pod for pod in active if pod not in current]
        surplus = sum(map(is_ready, active)) - desired
        outdated = [pod for pod in stale if not is_ready(pod)]
        outdated += sorted(filter(is_ready, stale), key=_deletion_order)[: max(0, surplus)]
        to_delete = outdated + sorted(current, key=_deletion_order)[: max(0, len(current) - desired)]
        for pod in to_delete:
            self._delete(deployment, pod)
        current = [pod for pod in current if pod not in to_delete]
        kept = len(stale) - len(outdated)
        for _ in range(min(desired, desired + SURGE - kept) - len(current)):
            current.append(self._new_pod(deployment, template))
        old = [pod for pod in stale if pod not in to_delete]
        self._store.write_status(Ref.of(deployment), _status(deployment, current, old))

    def _delete(self, deployment: Object, pod: Object) -> None:
        self._store.delete(Ref.of(pod))
        self._events.record(deployment, "Normal", "Deleted", f"Deleted pod: {pod['metadata']['name']}", "deployment")

    def _new_pod(self, deployment: Object, template: str) -> Object:
        """Create a pod with ports of its own, and the Service's (``hostPort``) where it is behind one."""
        metadata = deployment["metadata"]
        source = copy.deepcopy(deployment["spec"]["template"])
        labels = source.get("metadata", {}).get("labels", {})
        pod: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "generateName": f"{metadata['name']}-",
                "namespace": metadata["namespace"],
                "labels": {**labels, TEMPLATE_HASH: template},
                "annotations": source.get("metadata", {}).get("annotations", {}),
                "ownerReferences": [
                    {
                        "apiVersion": deployment["apiVersion"],
                        "kind": "Deployment",
                        "name": metadata["name"],
                        "uid": metadata["uid"],
                        "controller": True,
                    }
                ],
            },
            "spec": source["spec"],
        }
        if not wanted(pod):
            pod["spec"]["nodeName"] = NODE
        taken = self._services.assigned()
        for other in self._store.find("Pod"):
            taken |= pod_ports(other)
        containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        # All containers of a pod share its ports: a download reports its progress where the engine will serve.
        variables = {"BLADE_HOST": "127.0.0.1"}
        for container in containers:
            for port in container.get("ports", []):
                port["containerPort"] = ports.free_port(taken)
                taken.add(port["containerPort"])
                variables[port_variable(port["name"])] = str(port["containerPort"])
                shared = self._services.port_for(labels, metadata["namespace"], port["name"])
                if shared is not None:
                    port["hostPort"] = shared
        for container in containers:
            for name, value in variables.items():
                _set_variable(container, name, value)
        created = self._store.create(pod)
        self._events.record(
            deployment, "Normal", "Created", f"Created pod: {created['metadata']['name']}", "deployment"
        )
        return created


def template_hash(deployment: Object) -> str:
    """Hash of the pod template, ten hexadecimal digits."""
    text = json.dumps(deployment["spec"]["template"], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _owner(pod: Object) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))


def _set_variable(container: Object, name: str, value: str) -> None:
    for entry in container.get("env", []):
        if entry["name"] == name:
            entry["value"] = value


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
