"""Server-side apply, as much of it as one manager per object needs.

A three-way merge of what the manager applied before, what it applies now and what is stored: its fields replace its
fields, fields it no longer names go, fields of others stay. Lists that Kubernetes merges by a key are merged by it here
too; every other list is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEYS: Mapping[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "ports": ("name", "containerPort", "port"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Field name → what names an element of it; of several the first that every element has."""


def merge(live: Any, before: Any, now: Any, field: str = "") -> Any:
    """``live`` after a manager that had applied ``before`` applies ``now``."""
    if isinstance(now, dict) and isinstance(live, dict):
        return _merge_maps(live, before if isinstance(before, dict) else {}, now)
    if isinstance(now, list) and isinstance(live, list):
        return _merge_lists(live, before if isinstance(before, list) else [], now, field)
    return now


def _merge_maps(live: dict[str, Any], before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    merged = {name: value for name, value in live.items() if name in now or name not in before}
    for name, value in now.items():
        merged[name] = merge(live[name], before.get(name), value, name) if name in live else value
    return merged


def _merge_lists(live: list[Any], before: list[Any], now: list[Any], field: str) -> list[Any]:
    key = _key_of(field, live + before + now)
    if key is None:
        return now
    old = {item[key]: item for item in live}
    mine = {item[key]: item for item in before}
    wanted = {item[key] for item in now}
    merged = [
        merge(old[item[key]], mine.get(item[key]), item) if item[key] in old else item for item in now
    ]  # the applier's order comes first
    return merged + [item for item in live if item[key] not in wanted and item[key] not in mine]


def _key_of(field: str, items: list[Any]) -> str | None:
    for key in _KEYS.get(field, ()):
        if all(isinstance(item, dict) and key in item for item in items):
            return key
    return None
