"""Fills in defaults as an API server does on every write, for the local runtime's store."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from blade_operator.spec.crd.schema import Schema, service_schema


def apply_defaults(obj: dict[str, Any]) -> dict[str, Any]:
    """A copy of the LLMService ``obj`` with every default the CRD declares; what is set stays."""
    filled = copy.deepcopy(obj)
    _fill(filled, _schema())
    return filled


@cache
def _schema() -> Schema:
    return service_schema()


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
