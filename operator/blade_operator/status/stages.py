"""Start-up stages: the step that a pod is in while it is not ready yet and does not fail."""

from __future__ import annotations

from datetime import datetime

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object

SLOW_S = 15.0
"""Seconds after which a step is reported: most are over before the next reconcile."""


def stage(pod: Object, now: datetime) -> str:
    """A sentence on the start-up stage of ``pod``, or empty when there is nothing to report."""
    name = pod["metadata"]["name"]
    scheduled = podutil.condition(pod, "PodScheduled").get("lastTransitionTime")
    for state in podutil.containers(pod):
        if state.running and not state.ready and not state.init and not state.started:
            doing = "loads the model" if state.name == podutil.ENGINE else "starts"
            return f"pod {name} {doing}"
        if state.running and state.init:
            return ""  # the conditions of the download and of the check report it
        if state.waiting == "ContainerCreating" or (state.init and state.waiting == "PodInitializing"):
            pulling = podutil.condition(pod, "PodReadyToStartContainers").get("status") == "True"
            if pulling and podutil.age(scheduled, now) >= SLOW_S:
                return f"pod {name} pulls its image {podutil.container_spec(pod, state.name).get('image', '')}"
            return ""
    return ""
