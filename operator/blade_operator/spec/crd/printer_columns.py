"""Printer columns of the CRD, evaluated so that our ``get`` prints what ``kubectl get llm`` prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from blade_operator.spec.crd.definition import ADAPTER_COLUMNS, PRINTER_COLUMNS
from blade_protocol.labels import ADAPTER_KIND

_STEP: Final = re.compile(r'\.(?P<field>\w+)|\[\?\(@\.(?P<key>\w+)=="(?P<value>[^"]*)"\)\]')


def columns(obj: dict[str, Any], *, wide: bool = False, now: datetime | None = None) -> list[tuple[str, str]]:
    """Header and cell of every column of an object of one of our kinds: NAME, then the CRD's. ``wide`` adds those of
    priority 1."""
    row = [("NAME", str(obj["metadata"]["name"]))]
    for column in ADAPTER_COLUMNS if obj.get("kind") == ADAPTER_KIND else PRINTER_COLUMNS:
        if column.get("priority", 0) and not wide:
            continue
        value = lookup(obj, column["jsonPath"])
        if column["type"] == "date":
            cell = age(value, now or datetime.now(UTC)) if value else "<unknown>"
        else:
            cell = "" if value is None else str(value)
        row.append((column["name"].upper(), cell))
    return row


def lookup(obj: Any, path: str) -> Any:
    """The value at a JSONPath of fields and ``[?(@.key=="value")]`` filters, or None."""
    position = 0
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            raise ValueError(f"JSONPath {path!r} is not understood at {path[position:]!r}")
        position = step.end()
        if field := step["field"]:
            obj = obj.get(field) if isinstance(obj, dict) else None
        else:
            items: Sequence[Any] = obj if isinstance(obj, list) else ()
            obj = next((item for item in items if item.get(step["key"]) == step["value"]), None)
        if obj is None:
            return None
    return obj


def age(timestamp: str, now: datetime) -> str:
    """Time since ``timestamp`` as kubectl prints it: ``42s``, ``5m10s``, ``3h``, ``2d4h``, ``40d``, ``2y31d``."""
    seconds = int((now - datetime.fromisoformat(timestamp)).total_seconds())
    if seconds < 0:
        return "0s" if seconds >= -1 else "<invalid>"
    minutes, hours, days, years = seconds // 60, seconds // 3600, seconds // 86400, seconds // (365 * 86400)
    if seconds < 2 * 60:
        return f"{seconds}s"
    if minutes < 10:
        return _pair(minutes, "m", seconds % 60, "s")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return _pair(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _pair(days, "d", hours % 24, "h")
    if years < 2:
        return f"{days}d"
    return _pair(years, "y", days % 365, "d") if years < 8 else f"{years}y"


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}" + (f"{small}{small_unit}" if small else "")
