"""What a pod that is not ready yet, and not in trouble either, is doing."""

from __future__ import annotations

from datetime import datetime

from blade_operator import pods as read
from blade_operator.objects import Object

SLOW_S = 15.0
"""A step is told when it takes this long: most are over before a look."""


def stage(pod: Object, now: datetime) -> str:
    """A half sentence about ``pod``, or nothing when there is nothing to tell."""
    name = pod["metadata"]["name"]
    scheduled = read.condition(pod, "PodScheduled").get("lastTransitionTime")
    for state in read.containers(pod):
        if state.running and not state.ready and not state.init and not state.started:
            doing = "loads the model" if state.name == read.ENGINE else "starts"
            return f"pod {name} {doing}"
        if state.running and state.init:
            return ""  # the conditions of the download and of the check tell
        if state.waiting == "ContainerCreating" or (state.init and state.waiting == "PodInitializing"):
            pulling = read.condition(pod, "PodReadyToStartContainers").get("status") == "True"
            if pulling and read.age(scheduled, now) >= SLOW_S:
                return f"pod {name} pulls its image {read.spec_of(pod, state.name).get('image', '')}"
            return ""
    return ""
