"""The status of a pod, derived from those of its containers: phase and conditions as a kubelet reports them. Pure."""

from __future__ import annotations

from blade_operator.model.objects import Object


def container_status(name: str, image: str, reason: str) -> Object:
    """The status of a container that has not started."""
    return {
        "name": name,
        "image": image,
        "imageID": "",
        "ready": False,
        "started": False,
        "restartCount": 0,
        "state": {"waiting": {"reason": reason}},
        "lastState": {},
    }


def pod_status(
    previous: Object, init: list[Object], containers: list[Object], now: str, *, ends: bool = False
) -> Object:
    """The whole status; ``previous`` gives the start time and the conditions' transition times.

    ``ends``: the pod has succeeded when all its containers have.
    """
    waiting_init = [status["name"] for status in init if not succeeded(status)]
    unready = [status["name"] for status in containers if not status["ready"]]
    running = not waiting_init and any("running" in status["state"] or status["lastState"] for status in containers)
    ready = not waiting_init and not unready
    wanted = [
        ("PodScheduled", True, "", ""),
        (
            "Initialized",
            not waiting_init,
            "ContainersNotInitialized",
            f"containers with incomplete status: [{' '.join(waiting_init)}]",
        ),
        ("ContainersReady", ready, "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"),
        ("Ready", ready, "ContainersNotReady", f"containers with unready status: [{' '.join(unready)}]"),
    ]
    known = {condition["type"]: condition for condition in previous.get("conditions", [])}
    status: Object = {
        "phase": "Succeeded" if ends and all(map(succeeded, containers)) else "Running" if running else "Pending",
        "conditions": [
            _condition(known.get(name), name, holds, reason, text, now) for name, holds, reason, text in wanted
        ],
        "hostIP": "127.0.0.1",
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
        "startTime": previous.get("startTime", now),
        "containerStatuses": containers,
        "qosClass": "BestEffort",
    }
    if init:
        status["initContainerStatuses"] = init
    return status


def succeeded(status: Object) -> bool:
    """Whether a container ran to its end and exited with 0."""
    return bool(status["state"].get("terminated", {}).get("exitCode", 1) == 0)


def is_ready(pod: Object) -> bool:
    """Whether the pod's Ready condition is True."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def ready_since(pod: Object) -> str:
    """When Ready last changed (RFC 3339), or an empty string."""
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready":
            return str(condition["lastTransitionTime"])
    return ""


def is_terminating(pod: Object) -> bool:
    """Whether the pod terminates: it was deleted and has not ended."""
    return "deletionTimestamp" in pod["metadata"]


def restarts(pod: Object) -> int:
    """Number of restarts of its containers."""
    return sum(status["restartCount"] for status in pod.get("status", {}).get("containerStatuses", []))


def _condition(known: Object | None, name: str, holds: bool, reason: str, message: str, now: str) -> Object:
    status = "True" if holds else "False"
    since = known["lastTransitionTime"] if known is not None and known["status"] == status else now
    condition = {"type": name, "status": status, "lastTransitionTime": since}
    return condition if holds else condition | {"reason": reason, "message": message}
