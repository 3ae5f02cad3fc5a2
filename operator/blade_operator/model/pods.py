"""Readers of Pod objects: who a pod belongs to, whether it is ready, and the states of its containers.

A cache that trims pods must keep: name, namespace, labels, owner references and timestamps; the operator's own
annotations; of the spec the node's
name, volumes, and of each container name, image, ports and resources; of the status all but ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from blade_operator.model.objects import Object
from blade_protocol.check import CheckReport
from blade_protocol.fetch import FetchReport
from blade_protocol.labels import DRAINING_SINCE, REVISION, ROLE, STANDBY_SINCE, WOKEN_AT

T = TypeVar("T")

GRACE_S = 30.0
"""Seconds that a step which may take a moment has before it counts as a failure."""
_CREATING = frozenset({"", "ContainerCreating", "PodInitializing"})

FETCH = "fetch"
CHECK = "check"
ENGINE = "engine"
ROUTER = "router"
"""Container names in the pods that the operator renders."""
KEYS = "api-keys"
CERTIFICATE = "certificate"
"""Volume names in router pods, for the user's Secrets."""
TOKEN = "internal"
"""Volume name of the Secret with the internal token."""


@dataclass(frozen=True, slots=True)
class Termination:
    """How a run of a container ended (``state.terminated``)."""

    exit_code: int
    reason: str
    message: str
    seconds: float
    """Duration of the run; 0 when it is not known."""


@dataclass(frozen=True, slots=True)
class ContainerState:
    """State of one container of a pod, as its kubelet reports it."""

    name: str
    init: bool
    ready: bool
    restarts: int
    running: bool
    started: bool
    """Whether its startup probe has passed."""
    waiting: str
    """Reason why it waits, e.g. ``CrashLoopBackOff``; empty when it does not wait."""
    waiting_message: str
    termination: Termination | None
    """How it ended, when it has ended and was not restarted."""
    last_termination: Termination | None
    """How its previous run ended (``lastState``)."""


def role(pod: Object) -> str:
    """The role of ``pod``: ``engine`` or ``router``."""
    return str(pod["metadata"].get("labels", {}).get(ROLE, ""))


def revision(pod: Object) -> str:
    """The revision of the pod template that the pod was made from; empty when it has none."""
    return str(pod["metadata"].get("labels", {}).get(REVISION, ""))


def draining_since(pod: Object) -> str:
    """When the operator began to drain this engine to delete it; empty when it did not."""
    return _annotation(pod, DRAINING_SINCE)


def standby_since(pod: Object) -> str:
    """Since when this engine is to stand by; empty when it is not, or takes requests again."""
    return _annotation(pod, STANDBY_SINCE)


def woken_at(pod: Object) -> str:
    """When this engine was last asked to leave the warm pool; empty when it was not."""
    return _annotation(pod, WOKEN_AT)


def stands_by(pod: Object) -> bool:
    """Whether this engine is of the warm pool, and is to stay there."""
    return bool(standby_since(pod)) and not woken_at(pod)


def is_terminating(pod: Object) -> bool:
    """Whether ``pod`` was deleted and drains or ends."""
    return "deletionTimestamp" in pod["metadata"]


def is_finished(pod: Object) -> bool:
    """Whether all containers have ended for good, so that the pod uses no resources any more."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def is_active(pod: Object) -> bool:
    """Whether it runs or starts: it neither terminates nor has it ended for good."""
    return not is_terminating(pod) and not is_finished(pod)


def is_ready(pod: Object) -> bool:
    """Whether the Ready condition is True and the pod does not terminate."""
    if is_terminating(pod):
        return False
    return condition(pod, "Ready").get("status") == "True"


def condition(pod: Object, kind: str) -> Object:
    """The condition of type ``kind``; empty when the pod reports none."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def containers(pod: Object) -> Iterator[ContainerState]:
    """Yields the state of each container that has a status, init containers first, in the order they run."""
    status = pod.get("status", {})
    order = [spec["name"] for field in ("initContainers", "containers") for spec in pod.get("spec", {}).get(field, ())]
    for field, init in (("initContainerStatuses", True), ("containerStatuses", False)):
        reported = status.get(field) or ()
        for entry in sorted(reported, key=lambda e: order.index(e["name"]) if e["name"] in order else len(order)):
            state, last = entry.get("state") or {}, entry.get("lastState") or {}
            waiting = state.get("waiting") or {}
            yield ContainerState(
                name=entry["name"],
                init=init,
                ready=bool(entry.get("ready")),
                restarts=entry.get("restartCount", 0),
                running="running" in state,
                started=bool(entry.get("started")),
                waiting=waiting.get("reason", ""),
                waiting_message=waiting.get("message", ""),
                termination=_termination(state.get("terminated")),
                last_termination=_termination(last.get("terminated")),
            )


def container(pod: Object, name: str) -> ContainerState | None:
    """The state of the container called ``name``, when the pod reports one."""
    return next((state for state in containers(pod) if state.name == name), None)


def check_report(pod: Object) -> CheckReport | None:
    """The report of ``blade_llm_check`` in the termination message of its latest run that ended."""
    return _report(pod, CHECK, CheckReport)


def fetch_report(pod: Object) -> FetchReport | None:
    """The report of ``blade_llm_fetch`` in the termination message of its latest run that ended."""
    return _report(pod, FETCH, FetchReport)


def _report(pod: Object, name: str, kind: type[T]) -> T | None:
    state = container(pod, name)
    end = (state.termination or state.last_termination) if state else None
    if end is None or not end.message:
        return None
    try:
        return msgspec.json.decode(end.message.encode(), type=kind)
    except msgspec.DecodeError:
        return None


def waits_for_volumes(pod: Object, now: datetime) -> bool:
    """Whether the node has failed to set up volumes or network of ``pod`` for longer than that should take."""
    if not is_active(pod):
        return False
    scheduled = condition(pod, "PodScheduled")
    since = scheduled.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    if scheduled.get("status") != "True" or age(since, now) < GRACE_S:
        return False
    if any(
        each.waiting not in _CREATING or each.running or each.termination or each.last_termination
        for each in containers(pod)
    ):
        return False
    sandbox = condition(pod, "PodReadyToStartContainers").get("status")
    return sandbox == "False" if sandbox else not pod.get("status", {}).get("podIP")


def container_spec(pod: Object, name: str) -> Object:
    """The container called ``name`` in the spec of ``pod``; empty when there is none."""
    spec = pod.get("spec", {})
    every = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    return next((container for container in every if container["name"] == name), {})


def parse_time(text: Any) -> datetime | None:
    """The time in a Kubernetes timestamp, or None when ``text`` is not one."""
    try:
        return datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None


def age(text: Any, now: datetime) -> float:
    """Seconds since a Kubernetes timestamp; 0 when ``text`` is not one."""
    then = parse_time(text)
    return (now - then).total_seconds() if then is not None and then.tzinfo is not None else 0.0


def _annotation(pod: Object, name: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(name, ""))


def _termination(terminated: dict[str, Any] | None) -> Termination | None:
    if not terminated:
        return None
    began, ended = parse_time(terminated.get("startedAt")), parse_time(terminated.get("finishedAt"))
    return Termination(
        exit_code=terminated.get("exitCode", 0),
        reason=terminated.get("reason", ""),
        message=terminated.get("message", ""),
        seconds=(ended - began).total_seconds() if began and ended else 0.0,
    )
