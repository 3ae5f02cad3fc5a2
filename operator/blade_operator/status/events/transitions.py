"""Kubernetes Events: one for each significant change between two statuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from blade_operator.model.plan import EventRecord
from blade_operator.status import sleep
from blade_operator.status.events import recoveries
from blade_operator.status.failures.failure import killing_signal
from blade_operator.status.failures.find import failure_key

_DETAILS = frozenset({"SpecValid", "ModelCached", "PreflightPassed", "ModelFits", "SpeculationEffective", "Scaling"})
"""Conditions that get an Event when they fail and recover; Ready covers workers and routers, failures Degraded."""
_PROGRESS: dict[str, Literal["Normal", "Warning"]] = {
    "Updating": "Normal",
    "Paused": "Normal",
    "WaitingForWindow": "Normal",
    "Complete": "Normal",
    "Stalled": "Warning",
    "ProgressDeadlineExceeded": "Warning",
}
"""Reasons of Progressing that get an Event."""
_PLAIN_ENDS = frozenset({"", "Completed", "Error"})


def transitions(before: dict[str, Any], after: dict[str, Any]) -> list[EventRecord]:
    """The Events for what changed between two statuses, causes first."""
    return [
        *_revision(before, after),
        *_failures(before, after),
        *_conditions(before, after),
        *recoveries.events(before, after),
        *sleep.events(before, after),
    ]


def _conditions(before: dict[str, Any], after: dict[str, Any]) -> Iterator[EventRecord]:
    old = {condition["type"]: condition for condition in before.get("conditions", ())}
    for condition in after.get("conditions", ()):
        previous = old.get(condition["type"], {})
        if kind := _event_type(condition, previous.get("status", ""), previous.get("reason", "")):
            good = condition["status"] == "True" and condition["type"] != "Progressing"
            reason = condition["type"] if good else condition["reason"]
            yield EventRecord(kind, reason, condition.get("message", ""))


def _event_type(condition: dict[str, Any], status: str, reason: str) -> Literal["Normal", "Warning"] | None:
    """The type of the Event for a condition that had ``status`` and ``reason`` before; None when it needs none."""
    now, why, kind = condition["status"], condition["reason"], condition["type"]
    changed = (now, why) != (status, reason)
    if kind == "Ready":
        # While the service starts, the reason changes with every step: that needs no Event.
        return None if now == (status or "False") else "Normal" if now == "True" or why == "ScaledToZero" else "Warning"
    if kind == "Progressing":
        if not changed or why not in _PROGRESS:
            return None
        return _PROGRESS[why]
    if kind == "AdaptersReady":  # while they load, nothing is wrong; what was loaded has an Event of its own
        return "Warning" if changed and why in ("LoadFailed", "LeftOut") else None
    if kind in _DETAILS and changed:
        if now == "False" and kind == "ModelCached" and why not in ("Downloading", "DownloadFailed"):
            return None  # the failing container has an Event of its own
        if now == "False":
            return "Normal" if why == "Downloading" else "Warning"
        if now == "True" and status == "False":
            return "Normal"
    return None


def _failures(before: dict[str, Any], after: dict[str, Any]) -> Iterator[EventRecord]:
    reported = set(map(failure_key, before.get("failures", ())))
    for failure in after.get("failures", ()):
        if failure_key(failure) not in reported:
            reason = failure.get("reason", "")
            log = failure.get("lastLog", "") if killing_signal(failure["exitCode"]) is None else ""
            pod = f"pod {failure['pod']}: " if failure["pod"] else ""
            message = f"{pod}{failure.get('message', '')}{f': {log}' if log else ''}"
            yield EventRecord("Warning", "ContainerFailed" if reason in _PLAIN_ENDS else reason, message)


def _revision(before: dict[str, Any], after: dict[str, Any]) -> Iterator[EventRecord]:
    old, new = before.get("revision", {}).get("current", ""), after.get("revision", {}).get("current", "")
    if new and new != old:
        message = f"revision {new} replaces {old}" if old else f"revision {new} is the first"
        yield EventRecord("Normal", "NewRevision", message)
