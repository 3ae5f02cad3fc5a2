"""The revisions of a service for its user: their history, going back, and how a rollout goes. Pure functions.

They know of objects alone, so that every client of a cluster can use them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

from blade_operator.cli.errors import CommandError
from blade_operator.cli.tables import Row
from blade_operator.command_line import one_line
from blade_operator.model.objects import Object
from blade_operator.render.revisions import RESTORED, RESTORED_FIELDS
from blade_protocol.labels import CHANGE_CAUSE, RESTARTED_AT


@dataclass(frozen=True, slots=True)
class RolloutProgress:
    """How a rollout goes."""

    message: str
    done: bool = False
    failed: bool = False


def in_order(revisions: Sequence[Object]) -> list[Object]:
    """ControllerRevisions, oldest first."""
    return sorted(revisions, key=lambda obj: (obj.get("revision", 0), obj["metadata"]["name"]))


def name_of(revision: Object) -> str:
    """The name that status and pods have for it."""
    return str(revision["metadata"]["name"]).rpartition("-")[2]


def history(service: Object, revisions: Sequence[Object]) -> list[Row]:
    """A row for each revision, oldest first."""
    status = _revision(service)
    rows: list[Row] = []
    for obj in in_order(revisions):
        name = name_of(obj)
        states = [word for word in ("current", "stable", "failed") if status.get(word) == name]
        rows.append(
            [
                ("REVISION", str(obj.get("revision", 0))),
                ("NAME", name),
                ("STATE", ", ".join(states) or "-"),
                ("CHANGE-CAUSE", one_line((obj["metadata"].get("annotations") or {}).get(CHANGE_CAUSE, "<none>"))),
            ]
        )
    return rows


def find(service: Object, revisions: Sequence[Object], number: int | None) -> Object:
    """The revision of that number; by itself the one to go back to.

    Raises:
        CommandError: there is none.
    """
    ordered, status = in_order(revisions), _revision(service)
    if number is not None:
        found = next((obj for obj in ordered if obj.get("revision") == number), None)
        if found is None:
            known = ", ".join(str(obj.get("revision", 0)) for obj in ordered) or "none"
            raise CommandError(f"there is no revision {number}; there are {known} (see rollout history)")
        return found
    if status.get("failed") == status.get("current"):
        for obj in ordered:
            if name_of(obj) == status.get("stable"):
                return obj
    earlier = [obj for obj in ordered if name_of(obj) != status.get("current")]
    if not earlier:
        raise CommandError("there is no earlier revision to go back to (see rollout history)")
    return earlier[-1]


def undone(service: Object, revision: Object) -> Object | None:
    """``service`` with what shaped its engines in ``revision``; None where it is so already. All else stays.

    Raises:
        CommandError: the rollout is paused, or the revision does not have the spec.
    """
    number = revision.get("revision", 0)
    if service["spec"].get("rollout", {}).get("paused"):
        raise CommandError("the rollout is paused: resume it first (rollout resume)")
    kept = revision["data"].get("service")
    if kept is None:
        raise CommandError(
            f"revision {number} was made by a release that did not keep its spec: apply the manifest of that time; "
            f"its pod template is in ControllerRevision {revision['metadata']['name']}"
        )
    edited = copy.deepcopy(service)
    for part in RESTORED:
        _set(edited["spec"], part, kept["spec"].get(part))
    for part, field in RESTORED_FIELDS:
        _set(edited["spec"].setdefault(part, {}), field, kept["spec"].get(part, {}).get(field))
        if not edited["spec"][part]:
            del edited["spec"][part]
    cause = (revision["metadata"].get("annotations") or {}).get(CHANGE_CAUSE)
    annotations = {
        RESTARTED_AT: (kept["metadata"].get("annotations") or {}).get(RESTARTED_AT),
        CHANGE_CAUSE: cause,
    }
    for name, value in annotations.items():
        _annotate(edited, name, value)
    return None if edited == service else edited


def paused(service: Object, pause: bool) -> Object:
    """``service`` with its rollout paused or resumed.

    Raises:
        CommandError: it is so already.
    """
    if bool(service["spec"].get("rollout", {}).get("paused")) == pause:
        raise CommandError(f"{service['metadata']['name']} is {'already' if pause else 'not'} paused")
    edited = copy.deepcopy(service)
    edited["spec"].setdefault("rollout", {})["paused"] = pause
    return edited


def restarted(service: Object, stamp: str) -> Object:
    """``service`` with a new revision, of the same spec."""
    edited = copy.deepcopy(service)
    _annotate(edited, RESTARTED_AT, stamp)
    return edited


def is_rolled_back(service: Object) -> bool:
    """Whether the operator gave up the current revision."""
    status = _revision(service)
    return bool(status.get("failed")) and status.get("failed") == status.get("current")


def progress(service: Object, revisions: Sequence[Object] = ()) -> RolloutProgress:
    """How the rollout of the spec goes, by the status that the operator wrote.

    An annotation has no generation: whether the operator knows of a restart, the ControllerRevision says.
    """
    name, generation = service["metadata"]["name"], service["metadata"].get("generation", 0)
    status = service.get("status") or {}
    of_current = [obj["data"] for obj in revisions if name_of(obj) == _revision(service).get("current")]
    kept: Object = of_current[0].get("service", service) if of_current else service
    if status.get("observedGeneration", 0) < generation or _restart(kept) != _restart(service):
        return RolloutProgress("Waiting for the operator to take up the spec ...")
    found: Object = next((each for each in status.get("conditions", ()) if each["type"] == "Progressing"), {})
    reason, message = found.get("reason", ""), found.get("message", "")
    if reason == "Complete":
        return RolloutProgress(f'llmservice "{name}" successfully rolled out', done=True)
    if found.get("status") == "False":
        return RolloutProgress(f"{reason}: {message}", failed=True)
    return RolloutProgress(f"Waiting for the rollout to finish: {message or 'no status yet'} ({reason or 'Unknown'})")


def _revision(service: Object) -> Object:
    found: Object = (service.get("status") or {}).get("revision") or {}
    return found


def _restart(service: Object) -> str:
    return str((service["metadata"].get("annotations") or {}).get(RESTARTED_AT, ""))


def _set(fields: Object, name: str, value: object) -> None:
    if value is None:
        fields.pop(name, None)
    else:
        fields[name] = copy.deepcopy(value)


def _annotate(service: Object, name: str, value: str | None) -> None:
    annotations = dict(service["metadata"].get("annotations") or {})
    _set(annotations, name, value)
    if annotations or "annotations" in service["metadata"]:
        service["metadata"]["annotations"] = annotations
