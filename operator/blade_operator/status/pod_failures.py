"""What keeps a pod from running before or beside its containers: no node, no volume, a silent node, an eviction."""

from __future__ import annotations

import re
from datetime import datetime

from blade_operator import pods as read
from blade_operator.objects import Object
from blade_operator.status.failure import Failure, with_hint

_TAIL = re.compile(r"\.?\s*(?:no new claims to deallocate|preemption: |not found$).*$", re.DOTALL)
"""What the scheduler says after the reasons."""
_FIELDS = {read.KEYS: "spec.router.auth.keysSecret", read.CERTIFICATE: "spec.router.tls.secretName"}
"""Fields that say what a volume is to hold."""


def pod_failure(pod: Object, now: datetime) -> Failure | None:
    """What is wrong with ``pod`` as a whole, or None. For a pod whose containers are not to blame."""
    if read.is_finished(pod):
        return _ended(pod)
    if read.is_terminating(pod):
        return _overdue(pod, now)
    return _unscheduled(pod, now) or _stuck_in_creation(pod, now) or _silent_node(pod) or _unready(pod, now)


def _unscheduled(pod: Object, now: datetime) -> Failure | None:
    scheduled = read.condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        words = _TAIL.sub("", scheduled.get("message", ""))
        part = read.role(pod) or "engine"
        message = with_hint(f"cannot be scheduled: {words}", _scheduling_hint(pod, words, part))
        return _failure(pod, scheduled.get("reason") or "Unschedulable", message, stuck=True)
    if scheduled or pod.get("spec", {}).get("nodeName"):
        return None
    if read.age(pod["metadata"].get("creationTimestamp"), now) < read.PATIENCE_S:
        return None
    return _failure(pod, "NotScheduled", "no scheduler has looked at it yet: is the cluster's scheduler running?")


def _scheduling_hint(pod: Object, words: str, part: str) -> str:
    fields = []
    if re.search(r'persistentvolumeclaim "[^"]*" not found', words):
        fields.append("spec.model.cache.claimName" if read.spec_of(pod, read.FETCH) else "spec.model.uri")
    elif "PersistentVolumeClaim" in words:
        fields.append("spec.model.cache")
    if resources := set(re.findall(r"Insufficient ([\w./-]+)", words)):
        if resources & {"cpu", "memory", "ephemeral-storage"}:
            fields.append(f"spec.{part}.resources")
        if any("/" in resource for resource in resources):
            fields.append("spec.engine.gpus")
    if "affinity" in words or "selector" in words or "taint" in words:
        fields.append(f"spec.{part}.podTemplate")
    return ", ".join(fields)


def _stuck_in_creation(pod: Object, now: datetime) -> Failure | None:
    if not read.lacks_a_mount(pod, now):
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
    since = read.condition(pod, "PodScheduled").get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    name, node = pod["metadata"]["name"], pod.get("spec", {}).get("nodeName", "")
    message = (
        f"its containers wait since {since} for node {node} to set up its volumes{volumes} or its network; "
        f"kubectl describe pod {name} has the node's words"
    )
    return _failure(pod, "ContainerCreating", with_hint(message, ", ".join(fields)))


def _silent_node(pod: Object) -> Failure | None:
    """A node that stops reporting leaves its containers as they were and only takes the pod's Ready away."""
    ready = read.condition(pod, "Ready")
    if ready.get("status") != "False" or ready.get("reason") == "ReadinessGatesNotReady":
        return None
    states = [state for state in read.containers(pod) if not state.init]
    if not states or not all(state.running and state.ready for state in states):
        return None
    node = pod.get("spec", {}).get("nodeName", "")
    message = f"its containers run, but node {node} does not report: kubectl describe node {node}"
    return _failure(pod, "NodeNotReady", message)


def _unready(pod: Object, now: datetime) -> Failure | None:
    """Started, and then not passing its readiness probe. One that ended before is told by that."""
    ready = read.condition(pod, "Ready")
    if ready.get("status") != "False" or read.age(ready.get("lastTransitionTime"), now) < read.PATIENCE_S:
        return None
    for state in read.containers(pod):
        if not state.init and state.running and state.started and not state.ready and state.last_end is None:
            message = f"{state.name} runs, but does not pass its readiness probe: its log may say why"
            return _failure(pod, "Unready", message, container=state.name)
    return None


def _ended(pod: Object) -> Failure | None:
    """Evicted, refused by its node, or ended with it."""
    status = pod["status"]
    if status.get("phase") != "Failed":
        return None
    words = " ".join(str(status.get("message", "")).split())
    part = read.role(pod) or "engine"
    hint = f"spec.{part}.resources" if re.search(r"low on resource|exceed", words) else ""
    if status.get("reason") == "Evicted":
        return _failure(pod, "Evicted", with_hint(f"was evicted: {words}", hint))
    reason = status.get("reason") or "PodFailed"
    return _failure(pod, reason, with_hint(f"was ended by its node{f': {words}' if words else ''}", hint))


def _overdue(pod: Object, now: datetime) -> Failure | None:
    due = pod["metadata"]["deletionTimestamp"]
    if read.age(due, now) < read.PATIENCE_S:
        return None
    node = pod.get("spec", {}).get("nodeName", "")
    message = f"should have ended by {due} and is still there; node {node} may not report: kubectl describe node {node}"
    return _failure(pod, "StillTerminating", message)


def _failure(pod: Object, reason: str, message: str, *, container: str = "", stuck: bool = False) -> Failure:
    return Failure(read.role(pod), str(pod["metadata"]["name"]), container, reason, message, stuck=stuck)
