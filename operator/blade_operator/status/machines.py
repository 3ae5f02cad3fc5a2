"""Engines on several machines, for people: which machine a pod is, and which of them an engine waits for."""

from __future__ import annotations

from datetime import datetime

from blade_operator.model import pods as podutil
from blade_operator.model.groups import is_member, machine_of
from blade_operator.model.objects import Object
from blade_operator.status.inputs import StatusInputs
from blade_operator.status.stages import stage


def machine(inputs: StatusInputs, pod: Object) -> str:
    """Which machine of its engine a pod is, and with which ranks where the spec says that; else empty."""
    if not is_member(pod):
        return ""
    number = machine_of(pod)
    if inputs.service is None or podutil.revision(pod) != inputs.current:
        return f"machine {number}"
    gpus = inputs.service.spec.engine.gpus
    each = gpus.ranks_per_node
    first = number * each
    ranks = f"rank {first}" if each == 1 else f"ranks {first} to {first + each - 1}"
    return f"machine {number} of {gpus.nodes}, {ranks}"


def incomplete(inputs: StatusInputs, now: datetime) -> str:
    """How far the first engine of the current revision is that waits for some of its machines; empty: none does."""
    for group in inputs.groups:
        if group.revision == inputs.target and not group.is_leaving and not group.is_whole:
            ready = sum(map(podutil.is_ready, group.pods))
            count = f"{ready} of {group.nodes} machines of engine {group.name} ready"
            waits = [pod for pod in group.pods if not podutil.is_ready(pod)]
            doing = next((found for pod in waits if (found := stage(pod, now))), "")
            missing = f"{waits[0]['metadata']['name']} is not ({machine(inputs, waits[0])})" if waits else ""
            return "; ".join(filter(None, (count, doing or missing)))
    return ""
