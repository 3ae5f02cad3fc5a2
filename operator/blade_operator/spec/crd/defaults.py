"""Fills in defaults as an API server does on every write, for the local runtime's store."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from blade_operator.spec.crd.schema import Schema, adapter_schema, service_schema
from blade_protocol.labels import ADAPTER_KIND


def apply_defaults(obj: dict[str, Any]) -> dict[str, Any]:
    """A copy of ``obj``, of one of our kinds, with every default its CRD declares; what is set stays."""
    filled = copy.deepcopy(obj)
    _fill(filled, _schema(obj["kind"]))
    return filled


@cache
def _schema(kind: str) -> Schema:
    return adapter_schema() if kind == ADAPTER_KIND else service_schema()


def _fill(value: Any, schema: Schema) -> None:
    if isinstance(value, list) and "items" in schema:
        for item in value:
            _fill(item, schema["items"])
    if not isinstance(value, dict):
        return
    for name, child in schema.get("properties", {}).items():
        if "default" in child and value.get(name) is None:
            value[name] = copy.deepcopy(child["default"])
        if name in value:
            _fill(value[name], child)
