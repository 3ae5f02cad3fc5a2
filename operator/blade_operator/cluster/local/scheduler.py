"""The scheduler of the local runtime: gives each pod that wants GPUs its own, or lets it wait for some.

A pod without a node's name has not been scheduled. Which devices a pod has is in its environment variables, so a loop
that takes over finds it there.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from blade_operator.cluster.local import clock
from blade_operator.cluster.local.pod_status import is_terminating
from blade_operator.cluster.local.store import Store
from blade_operator.model.objects import Object, Ref

NODE = "localhost"
VARIABLES = {"nvidia.com/gpu": "CUDA_VISIBLE_DEVICES", "amd.com/gpu": "HIP_VISIBLE_DEVICES"}
"""The variable that limits a program to some devices, by the resource's name."""


def devices(resource: str) -> tuple[str, ...]:
    """The devices of this machine; only those that the variable allows, where it is set for this process.

    As drivers read it: up to the first that is none, so ``-1`` allows none.
    """
    allowed = os.environ.get(VARIABLES.get(resource, ""))
    if allowed is not None:
        names = (name.strip() for name in allowed.split(","))
        return tuple(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
    if resource == "nvidia.com/gpu":
        count = sum(path.name.removeprefix("nvidia").isdecimal() for path in Path("/dev").glob("nvidia[0-9]*"))
    elif resource == "amd.com/gpu":
        nodes = Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id")
        count = sum(path.read_text().strip() != "0" for path in nodes)
    else:
        count = 0
    return tuple(map(str, range(count)))


def wanted(pod: Object) -> dict[str, int]:
    """Devices that ``pod`` wants, by resource: the most of any of its containers."""
    found: dict[str, int] = {}
    for container in containers_of(pod):
        for name, amount in container.get("resources", {}).get("limits", {}).items():
            if "/" in name and int(amount):
                found[name] = max(found.get(name, 0), int(amount))
    return found


class Scheduler:
    """Schedules pods in the order in which they came: one that waits goes before those made later."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def sync(self) -> None:
        """Schedule the pods that fit; say of the others what is missing."""
        pods = self._store.find("Pod")
        for pod in sorted(pods, key=_order):
            if "nodeName" not in pod["spec"] and not is_terminating(pod):
                self._schedule(pod, list(filter(_holds_devices, pods)))

    def _schedule(self, pod: Object, others: Iterable[Object]) -> None:
        found: dict[str, str] = {}
        for resource, count in wanted(pod).items():
            variable = VARIABLES.get(resource, "")
            taken = {name for other in others for name in variable_of(other, variable).split(",")}
            free = [name for name in devices(resource) if name not in taken]
            if len(free) < count:
                self._leave_pending(pod, f"0/1 nodes are available: 1 Insufficient {resource}")
                return
            found[variable] = ",".join(free[:count])

        def place(obj: Object) -> None:
            obj["spec"]["nodeName"] = NODE
            for container in containers_of(obj):
                container["env"] = [
                    *(entry for entry in container.get("env", []) if entry["name"] not in found),
                    *({"name": name, "value": value} for name, value in found.items()),
                ]

        pod["spec"] = self._store.update(Ref.of(pod), place)["spec"]

    def _leave_pending(self, pod: Object, message: str) -> None:
        known = pod.get("status", {}).get("conditions") or [{}]
        if known[0].get("message") == message:
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": clock.stamp(clock.now()),
        }
        self._store.write_status(Ref.of(pod), {"phase": "Pending", "conditions": [condition]})


def _holds_devices(pod: Object) -> bool:
    """Whether the devices that a pod has are taken: it was scheduled, and has not ended for good."""
    return "nodeName" in pod["spec"] and pod.get("status", {}).get("phase") != "Succeeded"


def _order(pod: Object) -> int:
    """Creation times count seconds only; a pod that waits was last written when it was left pending."""
    return int(pod["metadata"]["resourceVersion"])


def containers_of(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def variable_of(pod: Object, name: str) -> str:
    """The value of an environment variable of the pod's first container that has it."""
    for container in containers_of(pod):
        for entry in container.get("env", []):
            if entry["name"] == name:
                return str(entry.get("value", ""))
    return ""
