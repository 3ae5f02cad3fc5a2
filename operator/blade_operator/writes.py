"""Which of the wanted objects are to be written now, and which of those that are there are wanted no more.

Most are written when they differ from what was observed. Two kinds are not: a Secret may be made but neither read nor
changed, and a claim's spec can only grow.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from blade_operator import pods as read
from blade_operator.drift import differs
from blade_operator.objects import Object, Ref
from blade_operator.ownership import owner
from blade_operator.render.meta import seal
from blade_operator.spec.quantity import parse_bytes

_REMOVABLE: Final = frozenset({"NetworkPolicy"})
"""Kinds that go when the spec stops asking for them. A claim stays: it holds data."""


def due(desired: Sequence[Object], there: Mapping[Ref, Object], pods: Iterable[Object], now: datetime) -> list[Object]:
    """The objects of ``desired`` to apply, in its order. At rest: none.

    A Secret is written together with any Deployment whose pods may mount it, and while a pod seems to miss it.
    """
    writes = {Ref.of(obj): write for obj in desired if (write := _write(there.get(Ref.of(obj)), obj)) is not None}
    secrets = any(ref.kind == "Deployment" for ref in writes) or any(read.lacks_a_mount(pod, now) for pod in pods)
    return [
        obj if obj["kind"] == "Secret" else writes[Ref.of(obj)]
        for obj in desired
        if Ref.of(obj) in writes or (secrets and obj["kind"] == "Secret")
    ]


def unwanted(desired: Iterable[Object], there: Iterable[Object], uid: str) -> list[Ref]:
    """Objects that the service ``uid`` owns and no longer asks for."""
    wanted = {Ref.of(obj) for obj in desired}
    return [
        Ref.of(obj) for obj in there if obj["kind"] in _REMOVABLE and Ref.of(obj) not in wanted and owner(obj) == uid
    ]


def _write(observed: Object | None, desired: Object) -> Object | None:
    if desired["kind"] == "Secret":
        return None
    if desired["kind"] == "PersistentVolumeClaim" and observed is not None:
        return _grown(observed, desired)
    return desired if differs(observed, desired) else None


def _grown(observed: Object, desired: Object) -> Object | None:
    """``desired`` when it asks for more than the claim that is there; all else of a claim stays as it was made."""
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
