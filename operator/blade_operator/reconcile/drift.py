"""Drift: whether an observed object still is what was rendered, whatever defaults a server added."""

from __future__ import annotations

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
_LIST_MAP_KEYS = {"volumeMounts": "mountPath", "volumeDevices": "devicePath"}
"""The key that identifies the items of a list (its ``listMapKey``), where that is not ``name``."""


def differs(observed: Object | None, desired: Object) -> bool:
    """Whether ``desired`` must be applied: another object was rendered before, or someone changed a rendered field."""
    if observed is None or desired_hash(observed) != desired_hash(desired):
        return True
    return not contains(observed, desired)


def contains(observed: Any, desired: Any, field: str = "") -> bool:
    """Whether ``observed`` has every field of ``desired``; fields that a server adds do not matter.

    Items of lists with a key match by it; every other list must be equal element by element.
    """
    if observed is None and desired in ({}, [], "", None, False, 0):
        return field not in _ABSENT_IS_NOT_EMPTY  # servers omit empty values
    if isinstance(desired, dict):
        if not isinstance(observed, dict):
            return False
        quantity = field if field in _QUANTITIES else ""
        return all(contains(observed.get(name), value, quantity or name) for name, value in desired.items())
    if isinstance(desired, list):
        return isinstance(observed, list) and _list_contains(observed, desired, _LIST_MAP_KEYS.get(field, "name"))
    if observed == desired:
        return True
    return field in _QUANTITIES and _quantity(observed) == _quantity(desired) is not None


def _list_contains(observed: list[Any], desired: list[Any], key: str) -> bool:
    if desired and _have_unique_keys(desired, key) and _have_unique_keys(observed, key):
        by_key = {item[key]: item for item in observed}
        return all(item[key] in by_key and contains(by_key[item[key]], item) for item in desired)
    return len(observed) == len(desired) and all(map(contains, observed, desired))


def _have_unique_keys(items: list[Any], key: str) -> bool:
    """Whether every item has the key, each with another value."""
    values = [item.get(key) if isinstance(item, dict) else None for item in items]
    return None not in values and len({*values}) == len(values)


def _quantity(value: Any) -> Decimal | None:
    try:
        return parse_quantity(value)
    except ValueError:
        return None
