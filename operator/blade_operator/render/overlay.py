"""Lays a user's ``podTemplate`` over a rendered one, as Kubernetes' strategic merge does.

Objects merge field by field and null removes a field; lists whose items have names merge item by item; every other list
is replaced. New init containers come before the operator's: what they bring is there for the download and the check.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from blade_operator.model.objects import Object
from blade_operator.spec.pod_fields import PodTemplate

_KEYS: Final[dict[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "resourceClaims": ("name",),
    "ports": ("name", "containerPort"),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
}
"""Field → what names an item; of several, the first that both items have."""
_FIRST: Final = "initContainers"


def lay_over(template: Object, overlay: PodTemplate | None) -> Object:
    """``template`` with ``overlay`` merged in; neither is changed."""
    if overlay is None:
        return template
    merged: Object = _merge(template, {"spec": overlay.spec})
    if overlay.metadata is not None:
        for field, added in (("labels", overlay.metadata.labels), ("annotations", overlay.metadata.annotations)):
            if added:
                merged["metadata"][field] = {**merged["metadata"].get(field, {}), **added}
    return merged


def _merge(base: Any, over: Any, field: str = "") -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return _merge_objects(base, over)
    if isinstance(base, list) and isinstance(over, list) and field in _KEYS:
        return _merge_lists(base, over, field)
    return _without_nulls(over)


def _merge_objects(base: Object, over: Object) -> Object:
    merged = copy.deepcopy({name: value for name, value in base.items() if name not in over})
    for name, value in over.items():
        if value is not None:
            merged[name] = _merge(base[name], value, name) if name in base else _without_nulls(value)
    return merged


def _merge_lists(base: list[Any], over: list[Any], field: str) -> list[Any]:
    added: list[Any] = []
    merged = copy.deepcopy(base)
    for item in over:
        index = next((place for place, mine in enumerate(base) if _same(mine, item, field)), None)
        if index is None:
            added.append(_without_nulls(item))
            continue
        # These have one source of several: another one replaces the rendered one.
        if field == "env":
            merged[index] = _without_nulls(item)
        elif field == "volumes":
            merged[index] = _merge_objects({name: value for name, value in base[index].items() if name in item}, item)
        else:
            merged[index] = _merge_objects(base[index], item)
    return added + merged if field == _FIRST else merged + added


def _same(mine: Any, other: Any, field: str) -> bool:
    if not isinstance(mine, dict) or not isinstance(other, dict):
        return False
    key = next((key for key in _KEYS[field] if key in mine and key in other), None)
    return key is not None and bool(mine[key] == other[key])


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return copy.deepcopy(value)
