"""Where llguidance 1.9 is wrong about numbers, so that such schemas are refused instead.

A number whose exclusive bound is whole and whose other bound lies less than 1 further from zero may take the excluded
value itself: 10 under ``exclusiveMinimum: 10, maximum: 10.5``.
"""

from __future__ import annotations

from math import ceil, floor
from typing import Any, Final

from blade_llm.sampling.guided.errors import StructureError
from blade_llm.sampling.guided.references import Place

_BOUNDS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


class NumberBounds:
    """The bounds of all parts of a schema. Parts that are joined by ``allOf`` and the like may meet in one number."""

    def __init__(self) -> None:
        self._parts: list[tuple[dict[str, Any], Place]] = []
        self._joined = False

    def add(self, schema: dict[str, Any], path: Place) -> None:
        """Another part."""
        bounds = any(keyword in schema for keyword in _BOUNDS)
        if bounds and schema.get("type") != "integer":
            self._parts.append((schema, path))
        if "allOf" in schema or (bounds and any(keyword in schema for keyword in ("$ref", "anyOf", "oneOf"))):
            self._joined = True

    def check(self) -> None:
        """Raise :class:`StructureError` where the excluded bound would be allowed."""
        if self._joined:
            _check(self._parts)
        for part in self._parts:
            _check([part])


def _check(parts: list[tuple[dict[str, Any], Place]]) -> None:
    lower = [part[key] for part, _ in parts for key in ("minimum", "exclusiveMinimum") if key in part]
    upper = [part[key] for part, _ in parts for key in ("maximum", "exclusiveMaximum") if key in part]
    above = {floor(value) for value in upper if value != floor(value)}
    below = {ceil(value) for value in lower if value != ceil(value)}
    for part, path in parts:
        least, most = part.get("exclusiveMinimum"), part.get("exclusiveMaximum")
        if least is not None and least >= 0 and least in above:
            raise StructureError(
                f"{path}/exclusiveMinimum: {least} with an upper bound below {floor(least) + 1} is not supported for "
                f"numbers; write a minimum a little above {least}"
            )
        if most is not None and most <= 0 and most in below:
            raise StructureError(
                f"{path}/exclusiveMaximum: {most} with a lower bound above {ceil(most) - 1} is not supported for "
                f"numbers; write a maximum a little below {most}"
            )
