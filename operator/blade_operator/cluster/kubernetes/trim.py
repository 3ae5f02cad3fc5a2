"""What is kept of each object: all that a decision or the status reads, nothing that only makes noise.

Two versions of an object that are equal when trimmed are the same to the operator, so what is dropped here also wakes
nobody: managed fields, counters in the status of Deployments and budgets, heartbeat times of conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from blade_operator.model.objects import Object
from blade_operator.model.pods import FETCH
from blade_protocol.labels import DELETION_COST, DRAINING_SINCE, OWN_KINDS, STANDBY_SINCE, WOKEN_AT

_METADATA = (
    "name",
    "namespace",
    "uid",
    "generation",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
)
_POD_ANNOTATIONS = (DELETION_COST, DRAINING_SINCE, STANDBY_SINCE, WOKEN_AT)
_NOISE = ("kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision")
_POD_SPEC = ("nodeName", "schedulingGates", "terminationGracePeriodSeconds", "volumes")
_CONTAINER = ("name", "image", "ports", "resources")
_POD_STATUS = ("phase", "podIP", "reason", "message", "startTime")
_CONTAINER_STATUS = ("name", "image", "ready", "started", "restartCount", "state", "lastState")
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")


def trim(obj: Object) -> Object:
    """``obj`` with only what is kept; shares its values with ``obj``."""
    kept: Object = {name: value for name, value in obj.items() if name not in ("metadata", "status", "spec")}
    kept["metadata"] = _metadata(obj)
    spec, status = obj.get("spec"), obj.get("status") or {}
    kind = obj["kind"]
    if spec is not None:
        kept["spec"] = _pod_spec(spec) if kind == "Pod" else spec
    if keep := _STATUS.get(kind):
        kept["status"] = keep(status)
    return kept


def _metadata(obj: Object) -> Object:
    metadata = _pick(obj["metadata"], _METADATA)
    if obj["kind"] not in OWN_KINDS:
        metadata.pop("generation", None)
    if obj["kind"] == "Pod":
        annotations = _pick(metadata.pop("annotations", None) or {}, _POD_ANNOTATIONS)
        metadata |= {"annotations": annotations} if annotations else {}
    elif "annotations" in metadata:
        metadata["annotations"] = {name: value for name, value in metadata["annotations"].items() if name not in _NOISE}
    return metadata


def _pod_spec(spec: Object) -> Object:
    kept = _pick(spec, _POD_SPEC)
    for field in ("initContainers", "containers"):
        if field in spec:
            kept[field] = [_container(container) for container in spec[field]]
    return kept


def _container(container: Object) -> Object:
    kept = _pick(container, _CONTAINER)
    if container["name"] == FETCH and container.get("env"):
        kept["env"] = [{"name": variable["name"]} for variable in container["env"]]
    return kept


def _pod_status(status: Object) -> Object:
    kept = _pick(status, _POD_STATUS) | _conditions(status)
    for field in ("initContainerStatuses", "containerStatuses"):
        if field in status:
            kept[field] = [_pick(entry, _CONTAINER_STATUS) for entry in status[field]]
    return kept


def _failed_replicas(status: Object) -> Object:
    """A Deployment's other conditions only repeat what its pods say."""
    return _conditions({"conditions": [c for c in status.get("conditions", ()) if c["type"] == "ReplicaFailure"]})


def _conditions(status: Object) -> Object:
    return {"conditions": [_pick(entry, _CONDITION) for entry in status.get("conditions") or ()]}


def _pick(source: Mapping[str, Any], names: Iterable[str]) -> Object:
    return {name: source[name] for name in names if name in source}


_STATUS: dict[str, Callable[[Object], Object]] = {
    **dict.fromkeys(OWN_KINDS, lambda status: status),
    "Pod": _pod_status,
    "Deployment": _failed_replicas,
    "Service": lambda status: _pick(status, ("loadBalancer",)),
    "PersistentVolumeClaim": lambda status: _pick(status, ("phase",)),
}
