"""Kubernetes Events: one for each thing that changed between two statuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blade_operator.plan import EventRecord

_GOOD_WHEN_FALSE = frozenset({"Degraded", "Progressing"})
_TOLD_OTHERWISE = frozenset({"Degraded"})
"""Its changes come with failures, which have events of their own."""


def transitions(before: dict[str, Any], after: dict[str, Any]) -> list[EventRecord]:
    """What happened between two statuses, in the order people would tell it."""
    return [*_revision(before, after), *_failures(before, after), *_conditions(before, after)]


def _conditions(before: dict[str, Any], after: dict[str, Any]) -> Iterator[EventRecord]:
    old = {condition["type"]: condition for condition in before.get("conditions", ())}
    for condition in after.get("conditions", ()):
        kind, status = condition["type"], condition["status"]
        if kind in _TOLD_OTHERWISE or status == "Unknown":
            continue
        previous = old.get(kind, {})
        same = (previous.get("status"), previous.get("reason")) == (status, condition["reason"])
        # While something starts, Ready and Progressing change their reason with every step: that is no news.
        quiet = kind in ("Ready", "WorkersReady", "RouterReady") and previous.get("status", "False") == status
        quiet |= kind == "Progressing" and condition["reason"] not in ("Stalled", "Complete", "Updating")
        quiet |= not previous and (kind, status) == ("SpecValid", "True")
        quiet |= condition["reason"] in ("NoDownload", "CheckOff")
        if same or quiet:
            continue
        stalled = condition["reason"] == "Stalled"
        bad = (status == "False" and kind not in _GOOD_WHEN_FALSE and condition["reason"] != "Downloading") or stalled
        reason = kind if status == "True" and kind not in _GOOD_WHEN_FALSE else f"{kind}{condition['reason']}"
        reason = condition["reason"] if kind == "Progressing" or bad else reason
        yield EventRecord("Warning" if bad else "Normal", reason, condition.get("message", ""))


def _failures(before: dict[str, Any], after: dict[str, Any]) -> Iterator[EventRecord]:
    told = {(failure["pod"], failure["container"], failure["restarts"]) for failure in before.get("failures", ())}
    for failure in after.get("failures", ()):
        if (failure["pod"], failure["container"], failure["restarts"]) not in told:
            tail = f": {failure['lastLog']}" if failure.get("lastLog") else ""
            message = f"pod {failure['pod']}: {failure.get('message', '')}{tail}"
            yield EventRecord("Warning", failure.get("reason") or "ContainerFailed", message)


def _revision(before: dict[str, Any], after: dict[str, Any]) -> Iterator[EventRecord]:
    old, new = before.get("revision", {}).get("current", ""), after.get("revision", {}).get("current", "")
    if new and new != old:
        message = f"revision {new} replaces {old}" if old else f"revision {new} is the first"
        yield EventRecord("Normal", "NewRevision", message)
