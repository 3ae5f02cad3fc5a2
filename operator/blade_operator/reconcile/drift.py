"""Drift: whether an observed object still is what was rendered, whatever defaults a server added."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from blade_operator.model.objects import Object
from blade_operator.render.meta import desired_hash
from blade_operator.spec.quantity import parse_quantity

_QUANTITIES = frozenset({"sizeLimit", "storage", "limits", "requests", "divisor"})
"""Fields whose values, or whose fields' values, are quantities, which a server normalizes: ``1000m`` becomes ``1``."""
_ABSENT_IS_NOT_EMPTY = frozenset(
    {
        "allowPrivilegeEscalation",
        "automountServiceAccountToken",
        "blockOwnerDeletion",
        "enableServiceLinks",
        "replicas",
        "revisionHistoryLimit",
        "terminationGracePeriodSeconds",
    }
)
"""Fields where absent means something else than false or 0; everywhere else servers omit empty values."""
_LIST_MAP_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "ports": "name",
    "imagePullSecrets": "name",
    "resourceClaims": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
    "ownerReferences": "uid",
}
"""Lists that servers merge item by item, and the key that identifies an item (its ``listMapKey``). Every other list
(arguments, subjects and rules of RBAC, peers of a policy) is replaced by an apply, and compared, as a whole."""
_SHARED_LISTS = frozenset({"ownerReferences"})
"""Lists to which others may add items."""


def differs(observed: Object | None, desired: Object) -> bool:
    """Whether ``desired`` must be applied: another object was rendered before, or someone changed a rendered field."""
    if observed is None or desired_hash(observed) != desired_hash(desired):
        return True
    return not contains(observed, desired)


def contains(observed: Any, desired: Any, field: str = "") -> bool:
    """Whether ``observed`` has every field of ``desired``; fields that a server adds do not matter.

    Items of lists with a key match by it, and further ones are `surplus`; every other list must be equal element by
    element.
    """
    if observed is None and desired in ({}, [], "", None, False, 0):
        return field not in _ABSENT_IS_NOT_EMPTY  # servers omit empty values
    if isinstance(desired, dict):
        if not isinstance(observed, dict):
            return False
        quantity = field if field in _QUANTITIES else ""
        return all(contains(observed.get(name), value, quantity or name) for name, value in desired.items())
    if isinstance(desired, list):
        if not isinstance(observed, list):
            return False
        if key := _key(field, desired):
            found = _by_key(observed, key)
            return all(item[key] in found and contains(observed[found[item[key]]], item) for item in desired)
        return len(observed) == len(desired) and all(map(contains, observed, desired))
    if observed == desired:
        return True
    return field in _QUANTITIES and _quantity(observed) == _quantity(desired) is not None


def surplus(observed: Object, desired: Object) -> tuple[str, ...]:
    """JSON pointers to items that somebody added to lists of ``desired``: an apply leaves what others own.

    In the order in which they can be removed one after the other. Fields that ``desired`` does not have are anyone's.
    """
    paths = sorted(_surplus(observed, desired, ()), key=lambda path: [(isinstance(step, int), step) for step in path])
    return tuple("".join(f"/{_escaped(step)}" for step in path) for path in reversed(paths))


def _surplus(observed: Any, desired: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if isinstance(desired, dict) and isinstance(observed, dict):
        for name, value in desired.items():
            if isinstance(value, dict | list):
                yield from _surplus(observed.get(name), value, (*path, name))
    elif isinstance(desired, list) and isinstance(observed, list):
        field = str(path[-1]) if path else ""
        if not (key := _key(field, desired)):
            return
        found, wanted = _by_key(observed, key), {item[key]: item for item in desired}
        for index, item in enumerate(observed):
            name = item.get(key) if isinstance(item, dict) else None
            if name in wanted and found[name] == index:
                yield from _surplus(item, wanted[name], (*path, index))
            elif field not in _SHARED_LISTS:
                yield (*path, index)


def _key(field: str, desired: list[Any]) -> str:
    """The key by which items of the list match; empty when it is compared as a whole."""
    key = _LIST_MAP_KEYS.get(field, "")
    values = [item.get(key) if isinstance(item, dict) else None for item in desired]
    return key if key and None not in values and len({*values}) == len(values) else ""


def _by_key(items: list[Any], key: str) -> dict[Any, int]:
    """The place of the first item of each key."""
    places: dict[Any, int] = {}
    for index, item in enumerate(items):
        if isinstance(item, dict) and key in item:
            places.setdefault(item[key], index)
    return places


def _escaped(step: str | int) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


def _quantity(value: Any) -> Decimal | None:
    try:
        return parse_quantity(value)
    except ValueError:
        return None
