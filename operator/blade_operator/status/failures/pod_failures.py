"""Failures of a pod as a whole: no node, no volume, a node that does not report, an eviction."""

from __future__ import annotations

import re
from datetime import datetime

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object
from blade_operator.status.failures.failure import Failure, with_hint

_TAIL = re.compile(r"\.?\s*(?:no new claims to deallocate|preemption: |not found$).*$", re.DOTALL)
"""Text that the scheduler appends to the reasons."""
_FIELDS = {podutil.KEYS: "spec.router.auth.keysSecret", podutil.CERTIFICATE: "spec.router.tls.secretName"}
"""Fields that name the Secret of a volume."""


def pod_failure(pod: Object, now: datetime) -> Failure | None:
    """The failure of ``pod`` as a whole, or None: its containers are not the cause."""
    if podutil.is_finished(pod):
        return _finished(pod)
    if podutil.is_terminating(pod):
        return _overdue(pod, now)
    return _unscheduled(pod, now) or _stuck_in_creation(pod, now) or _node_not_reporting(pod) or _unready(pod, now)


def _unscheduled(pod: Object, now: datetime) -> Failure | None:
    scheduled = podutil.condition(pod, "PodScheduled")
    if gates := [gate["name"] for gate in pod.get("spec", {}).get("schedulingGates") or ()]:
        message = f"waits in a queue: it is scheduled once whoever set {', '.join(gates)} removes that gate"
        return _failure(pod, "SchedulingGated", message)
    if scheduled.get("status") == "False":
        cause = _TAIL.sub("", scheduled.get("message", ""))
        part = podutil.role(pod) or "engine"
        message = with_hint(f"cannot be scheduled: {cause}", _scheduling_hint(pod, cause, part))
        return _failure(pod, scheduled.get("reason") or "Unschedulable", message, stuck=True)
    if scheduled or pod.get("spec", {}).get("nodeName"):
        return None
    if podutil.age(pod["metadata"].get("creationTimestamp"), now) < podutil.GRACE_S:
        return None
    return _failure(pod, "NotScheduled", "no scheduler has looked at it yet: is the cluster's scheduler running?")


def _scheduling_hint(pod: Object, cause: str, part: str) -> str:
    fields = []
    if re.search(r'persistentvolumeclaim "[^"]*" not found', cause):
        fields.append("spec.model.cache.claimName" if podutil.container_spec(pod, podutil.FETCH) else "spec.model.uri")
    elif "PersistentVolumeClaim" in cause:
        fields.append("spec.model.cache")
    if resources := set(re.findall(r"Insufficient ([\w./-]+)", cause)):
        if resources & {"cpu", "memory", "ephemeral-storage"}:
            fields.append(f"spec.{part}.resources")
        if any("/" in resource for resource in resources):
            fields.append("spec.engine.gpus")
    if "affinity" in cause or "selector" in cause or "taint" in cause:
        fields.append(f"spec.{part}.podTemplate")
    return ", ".join(fields)


def _stuck_in_creation(pod: Object, now: datetime) -> Failure | None:
    if not podutil.waits_for_volumes(pod, now):
        return None
    needed, fields = [], []
    for volume in pod.get("spec", {}).get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            needed.append(f"claim {claim['claimName']}")
        elif secret := volume.get("secret"):
            needed.append(f"secret {secret['secretName']}")
        elif config := volume.get("configMap"):
            needed.append(f"config map {config['name']}")
        fields += [_FIELDS[volume["name"]]] if volume["name"] in _FIELDS else []
    volumes = f" ({', '.join(needed)})" if needed else ""
    since = podutil.condition(pod, "PodScheduled").get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    name, node = pod["metadata"]["name"], pod.get("spec", {}).get("nodeName", "")
    message = (
        f"its containers wait since {since} for node {node} to set up its volumes{volumes} or its network; "
        f"kubectl describe pod {name} has the node's words"
    )
    return _failure(pod, "ContainerCreating", with_hint(message, ", ".join(fields)))


def _node_not_reporting(pod: Object) -> Failure | None:
    """A node that stops reporting leaves its containers as they were and only takes the pod's Ready away."""
    ready = podutil.condition(pod, "Ready")
    if ready.get("status") != "False" or ready.get("reason") == "ReadinessGatesNotReady":
        return None
    states = [state for state in podutil.containers(pod) if not state.init]
    if not states or not all(state.running and state.ready for state in states):
        return None
    node = pod.get("spec", {}).get("nodeName", "")
    message = f"its containers run, but node {node} does not report: kubectl describe node {node}"
    return _failure(pod, "NodeNotReady", message)


def _unready(pod: Object, now: datetime) -> Failure | None:
    """A failure when a container runs but does not pass its readiness probe. One that ended before has that failure.

    An engine on standby is not to pass it.
    """
    ready = podutil.condition(pod, "Ready")
    if podutil.stands_by(pod):
        return None
    if ready.get("status") != "False" or podutil.age(ready.get("lastTransitionTime"), now) < podutil.GRACE_S:
        return None
    for state in podutil.containers(pod):
        if not state.init and state.running and state.started and not state.ready and state.last_termination is None:
            message = f"{state.name} runs, but does not pass its readiness probe: its log may say why"
            return _failure(pod, "Unready", message, container=state.name)
    return None


def _finished(pod: Object) -> Failure | None:
    """A failure when the pod was evicted, rejected by its node, or ended with it."""
    status = pod["status"]
    if status.get("phase") != "Failed":
        return None
    cause = " ".join(str(status.get("message", "")).split())
    part = podutil.role(pod) or "engine"
    hint = f"spec.{part}.resources" if re.search(r"low on resource|exceed", cause) else ""
    if status.get("reason") == "Evicted":
        return _failure(pod, "Evicted", with_hint(f"was evicted: {cause}", hint))
    reason = status.get("reason") or "PodFailed"
    return _failure(pod, reason, with_hint(f"was ended by its node{f': {cause}' if cause else ''}", hint))


def _overdue(pod: Object, now: datetime) -> Failure | None:
    due = pod["metadata"]["deletionTimestamp"]
    if podutil.age(due, now) < podutil.GRACE_S:
        return None
    node = pod.get("spec", {}).get("nodeName", "")
    message = f"should have ended by {due} and is still there; node {node} may not report: kubectl describe node {node}"
    return _failure(pod, "StillTerminating", message)


def _failure(pod: Object, reason: str, message: str, *, container: str = "", stuck: bool = False) -> Failure:
    return Failure(podutil.role(pod), str(pod["metadata"]["name"]), container, reason, message, stuck=stuck)
