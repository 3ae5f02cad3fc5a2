"""The writes of a plan: which of the desired objects to apply now, and which of the existing ones to delete.

Most objects are applied when they drift from the rendered ones. Two kinds are not: a Secret cannot be
read, and a claim's spec can only grow.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from blade_operator.model import pods as podutil
from blade_operator.model.controllers import CONTROLLERS
from blade_operator.model.objects import Object, Ref
from blade_operator.model.plan import Prune
from blade_operator.reconcile.drift import differs, surplus
from blade_operator.reconcile.ownership import owner_uid
from blade_operator.render.meta import seal
from blade_operator.spec.quantity import parse_bytes

_NOT_COMPARED: Final = frozenset({"Secret", "PersistentVolumeClaim"})
_REMOVABLE: Final = frozenset({"NetworkPolicy"})
"""Kinds that are deleted when the spec no longer needs them. A claim stays: it holds data."""


def objects_to_apply(
    desired: Sequence[Object],
    existing: Mapping[Ref, Object],
    pods: Iterable[Object],
    now: datetime,
) -> list[Object]:
    """The objects of ``desired`` that must be applied, in its order; none in steady state.

    A Secret is applied together with any workload whose pods may mount it, and while a pod seems to lack it: it is
    made where it is missing, and else stays as it is (`secrets_to_replace`).
    """
    writes = {
        Ref.of(obj): write for obj in desired if (write := _needed_write(existing.get(Ref.of(obj)), obj)) is not None
    }
    secrets = any(ref.kind in CONTROLLERS for ref in writes) or any(podutil.waits_for_volumes(pod, now) for pod in pods)
    return [
        obj if obj["kind"] == "Secret" else writes[Ref.of(obj)]
        for obj in desired
        if Ref.of(obj) in writes or (secrets and obj["kind"] == "Secret")
    ]


def objects_to_prune(
    desired: Sequence[Object], existing: Mapping[Ref, Object], applied: Iterable[Object]
) -> list[Prune]:
    """What somebody added to lists of the objects of ``desired``, apart from those that are ``applied`` first."""
    found, later = [], {Ref.of(obj) for obj in applied}
    for obj in desired:
        observed = existing.get(Ref.of(obj))
        if observed is None or obj["kind"] in _NOT_COMPARED or Ref.of(obj) in later:
            continue
        if paths := surplus(observed, obj):
            found.append(Prune(Ref.of(obj), paths))
    return found


def objects_to_delete(desired: Iterable[Object], existing: Iterable[Object], uid: str) -> list[Ref]:
    """Objects that the service ``uid`` owns and no longer needs."""
    needed = {Ref.of(obj) for obj in desired}
    return [
        Ref.of(obj)
        for obj in existing
        if obj["kind"] in _REMOVABLE and Ref.of(obj) not in needed and owner_uid(obj) == uid
    ]


def _needed_write(observed: Object | None, desired: Object) -> Object | None:
    if desired["kind"] == "Secret":
        return None
    if desired["kind"] == "PersistentVolumeClaim" and observed is not None:
        return _expanded(observed, desired)
    return desired if differs(observed, desired) else None


def _expanded(observed: Object, desired: Object) -> Object | None:
    """The claim with the size of ``desired`` when that is larger; all else of a claim is immutable and stays."""
    before, after = _size(observed), _size(desired)
    if after <= before:
        return None
    claim = copy.deepcopy(desired)
    claim["spec"]["accessModes"] = observed["spec"]["accessModes"]
    if "storageClassName" in observed["spec"]:
        claim["spec"]["storageClassName"] = observed["spec"]["storageClassName"]
    else:
        claim["spec"].pop("storageClassName", None)
    return seal(claim)


def _size(claim: Object) -> int:
    return parse_bytes(claim["spec"]["resources"]["requests"]["storage"])
