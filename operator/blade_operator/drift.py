"""Whether an observed object still is what was rendered."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from blade_operator.objects import Object
from blade_operator.render.meta import desired_hash
from blade_operator.spec.quantity import parse_quantity

_AMOUNTS = frozenset({"sizeLimit", "storage", "limits", "requests", "divisor"})
"""Fields whose values, or whose fields' values, a server writes in its own way: ``1000m`` becomes ``1``."""
_TELLING = frozenset(
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
"""Fields where absent means another thing than false or 0; everywhere else servers leave those out."""
_KEYS = {"volumeMounts": "mountPath", "volumeDevices": "devicePath"}
"""List → what names its items, where that is not ``name``."""


def differs(observed: Object | None, desired: Object) -> bool:
    """Whether a write is due: another object was wanted before, or someone changed what is wanted."""
    if observed is None or desired_hash(observed) != desired_hash(desired):
        return True
    return not contains(observed, desired)


def contains(observed: Any, desired: Any, field: str = "") -> bool:
    """Whether ``observed`` has everything ``desired`` has; what a server adds does not matter.

    Lists of named things match by name; every other list must be equal element by element.
    """
    if observed is None and desired in ({}, [], "", None, False, 0):
        return field not in _TELLING  # servers leave out what is empty
    if isinstance(desired, dict):
        if not isinstance(observed, dict):
            return False
        amounts = field if field in _AMOUNTS else ""
        return all(contains(observed.get(name), value, amounts or name) for name, value in desired.items())
    if isinstance(desired, list):
        return isinstance(observed, list) and _list_contains(observed, desired, _KEYS.get(field, "name"))
    if observed == desired:
        return True
    return field in _AMOUNTS and _amount(observed) == _amount(desired) is not None


def _list_contains(observed: list[Any], desired: list[Any], key: str) -> bool:
    if desired and _all_named(desired, key) and _all_named(observed, key):
        by_name = {item[key]: item for item in observed}
        return all(item[key] in by_name and contains(by_name[item[key]], item) for item in desired)
    return len(observed) == len(desired) and all(map(contains, observed, desired))


def _all_named(items: list[Any], key: str) -> bool:
    """Whether every item has a name of its own."""
    names = [item.get(key) if isinstance(item, dict) else None for item in items]
    return None not in names and len({*names}) == len(names)


def _amount(value: Any) -> Decimal | None:
    try:
        return parse_quantity(value)
    except ValueError:
        return None
