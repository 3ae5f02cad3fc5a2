"""Containers that failed: the first of each pod, in words, those that have recovered since included."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from blade_operator import pods as read
from blade_operator.objects import Object
from blade_operator.pods import CHECK, FETCH, ContainerState, End

LIMIT = 16
LINE_LIMIT = 400
STUCK_AFTER = 3
"""Restarts after which an engine or router is not expected to recover by itself."""
STUCK_IN_INIT = 2
"""The same for what runs before it: a check that failed twice will fail again."""
_BACK_OFF = "CrashLoopBackOff"
_ALWAYS = frozenset({"container", "exitCode", "restarts"})
_UNSEEN = frozenset({"Unknown", "ContainerStatusUnknown"})
"""Reasons of an end that nobody saw: its exit code is made up."""
_HARMLESS = frozenset({"", "ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong in one pod."""

    role: str
    """``engine`` or ``router``."""
    pod: str
    container: str
    reason: str
    exit_code: int
    restarts: int
    message: str
    last_log: str
    broken: bool
    """Still failing, as opposed to recovered."""
    stuck: bool
    """Failed again and again, or cannot even start."""

    @property
    def told(self) -> str:
        """Pod, what happened, and the program's own last words where they are the reason: not when it was killed."""
        words = f": {self.last_log}" if self.last_log and killing_signal(self.exit_code) is None else ""
        return f"pod {self.pod}: {self.message}{words}"

    def as_status(self) -> dict[str, Any]:
        """The entry in ``status.failures``."""
        entry = {
            "pod": self.pod,
            "container": self.container,
            "reason": self.reason,
            "exitCode": self.exit_code,
            "restarts": self.restarts,
            "message": self.message,
            "lastLog": self.last_log,
        }
        return {key: value for key, value in entry.items() if value or key in _ALWAYS}


def find_failures(pods: Iterable[Object]) -> list[Failure]:
    """The first failing container of each pod; pods that still fail come first."""
    found = [failure for pod in pods if (failure := _of_pod(pod)) is not None]
    return sorted(found, key=lambda failure: not failure.broken)[:LIMIT]


def _of_pod(pod: Object) -> Failure | None:
    name, ready = str(pod["metadata"]["name"]), read.is_ready(pod)
    for state in read.containers(pod):
        end = (
            state.last_end if state.running or (state.end and state.end.exit_code == 0) else state.end or state.last_end
        )
        blocked = state.waiting not in _HARMLESS
        failed_end = end is not None and (end.exit_code != 0 or not state.init)
        if not blocked and not failed_end:
            continue
        recovered = ready or (state.init and state.end is not None and state.end.exit_code == 0)
        stuck = not recovered and (
            (blocked and (state.init or state.waiting != _BACK_OFF or state.restarts >= STUCK_AFTER))
            or (state.init and state.restarts >= STUCK_IN_INIT)  # also while it tries once more
        )
        return Failure(
            role=read.role(pod),
            pod=name,
            container=state.name,
            reason=state.waiting if blocked else _BACK_OFF if stuck else _reason(end),
            exit_code=end.exit_code if end else 0,
            restarts=state.restarts,
            message=_describe(state, end),
            last_log=_last_line(pod, state, end),
            broken=not recovered,
            stuck=stuck,
        )
    return _unschedulable(pod)


def _unschedulable(pod: Object) -> Failure | None:
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return Failure(
                role=read.role(pod),
                pod=str(pod["metadata"]["name"]),
                container="",
                reason=condition.get("reason", "Unschedulable"),
                exit_code=0,
                restarts=0,
                message=f"cannot be scheduled: {condition.get('message', '')}"[:LINE_LIMIT],
                last_log="",
                broken=True,
                stuck=True,
            )
    return None


def _reason(end: End | None) -> str:
    if end is None:
        return ""
    return end.reason or ("Completed" if end.exit_code == 0 else "Error")


def _describe(state: ContainerState, end: End | None) -> str:
    if end is None:
        return f"{state.name} cannot start: {state.waiting_message or state.waiting}"[:LINE_LIMIT]
    if end.reason == "OOMKilled":
        what = "ran out of memory (OOMKilled)"
    elif end.reason in _UNSEEN:
        what = "ended, its exit code is unknown"
    elif (killer := killing_signal(end.exit_code)) is not None:
        what = f"was killed by {killer.name} (exit {end.exit_code})"
    elif end.exit_code:
        what = f"failed (exit {end.exit_code})"
    else:
        what = "ended by itself (exit 0)"
    times = "" if not state.restarts else f", restarted {state.restarts} time{'s' if state.restarts > 1 else ''}"
    return f"{state.name} {what}{times}"


def killing_signal(exit_code: int) -> signal.Signals | None:
    """The signal an exit code stands for (128 + n), or None: 255 for one is what ``exit(-1)`` gives."""
    try:
        return signal.Signals(exit_code - 128)
    except ValueError:
        return None


def report_line(pod: Object, name: str) -> str:
    """What our own init container says was wrong, from the report it left; empty when it left none."""
    if name == FETCH:
        fetched = read.fetch_report(pod)
        return fetched.message if fetched and not fetched.ready else ""
    report = read.check_report(pod)
    bad = [item for item in report.items if item.status != "PASS"] if report else []
    for item in sorted(bad, key=lambda item: item.status != "FAILED"):
        return f"{item.name} {item.status}: {item.detail}"
    return ""


def _last_line(pod: Object, state: ContainerState, end: End | None) -> str:
    if end is None or not end.message.strip():
        return ""
    if state.name in (CHECK, FETCH) and end.message.startswith("{"):
        return report_line(pod, state.name)[:LINE_LIMIT]
    return end.message.strip().splitlines()[-1].strip()[:LINE_LIMIT]
