"""Whether an observed object still is what was rendered."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from blade_operator.objects import Object
from blade_operator.render.meta import desired_hash
from blade_operator.spec.quantity import parse_quantity

_AMOUNTS = frozenset({"cpu", "memory", "sizeLimit"})
"""Fields whose values a server writes in its own way: ``1000m`` becomes ``1``."""


def differs(observed: Object | None, desired: Object) -> bool:
    """Whether a write is due: another object was wanted before, or someone changed what is wanted."""
    if observed is None or desired_hash(observed) != desired_hash(desired):
        return True
    return not contains(observed, desired)


def contains(observed: Any, desired: Any, field: str = "") -> bool:
    """Whether ``observed`` has everything ``desired`` has; what a server adds does not matter.

    Lists of named things match by name; every other list must be equal element by element.
    """
    if observed is None and desired in ({}, [], ""):
        return True  # servers leave out what is empty
    if isinstance(desired, dict):
        if not isinstance(observed, dict):
            return False
        return all(contains(observed.get(name), value, name) for name, value in desired.items())
    if isinstance(desired, list):
        return isinstance(observed, list) and _list_contains(observed, desired)
    if observed == desired:
        return True
    return field in _AMOUNTS and _amount(observed) == _amount(desired) is not None


def _list_contains(observed: list[Any], desired: list[Any]) -> bool:
    if desired and all(isinstance(item, dict) and "name" in item for item in desired + observed):
        by_name = {item["name"]: item for item in observed}
        return all(item["name"] in by_name and contains(by_name[item["name"]], item) for item in desired)
    return len(observed) == len(desired) and all(map(contains, observed, desired))


def _amount(value: Any) -> Decimal | None:
    try:
        return parse_quantity(value)
    except ValueError:
        return None
