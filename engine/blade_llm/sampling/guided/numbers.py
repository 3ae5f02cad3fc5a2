"""Refuses schemas about whose numbers llguidance 1.9 is wrong.

A number whose exclusive bound is whole and whose other bound lies less than 1 further from zero may take the excluded
value itself: 10 under ``exclusiveMinimum: 10, maximum: 10.5``.
"""

from __future__ import annotations

from math import ceil, floor
from typing import Any, Final

from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.references import Place

_BOUNDS: Final = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_MOST_WORK: Final = 100_000
"""Parts that are compared to find those that meet; beyond, any may."""
_Part = tuple[dict[str, Any], Place]
"""A schema and its place."""


class NumberBounds:
    """The bounds of all parts of a schema. Those below an ``allOf`` and the like may meet in one number."""

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}
        self._children: dict[int, list[Any]] = {}
        self._joining: list[int] = []

    def add(self, schema: dict[str, Any], path: Place, children: list[Any]) -> None:
        """Another part, and the schemas it names."""
        bounds = any(keyword in schema for keyword in _BOUNDS)
        if bounds and schema.get("type") != "integer":
            self._parts[id(schema)] = (schema, path)
        self._children[id(schema)] = children
        if "allOf" in schema or (bounds and any(keyword in schema for keyword in ("$ref", "anyOf", "oneOf"))):
            self._joining.append(id(schema))

    def check(self) -> None:
        """Raise :class:`GrammarSpecError` where the excluded bound would be allowed."""
        for part in self._parts.values():
            _check([part])
        try:
            _check(list(self._parts.values()))
        except GrammarSpecError:  # perhaps of parts that never meet
            work = _MOST_WORK
            for joining in self._joining:
                below = self._below(joining)
                work -= len(below)
                if work < 0:
                    raise
                _check([self._parts[part] for part in below if part in self._parts])

    def _below(self, start: int) -> list[int]:
        found, waiting = {start: None}, [start]
        while waiting:
            for child in map(id, self._children.get(waiting.pop(), ())):
                if child not in found:
                    found[child] = None
                    waiting.append(child)
        return list(found)


def _check(parts: list[_Part]) -> None:
    lower = [part[key] for part, _ in parts for key in ("minimum", "exclusiveMinimum") if key in part]
    upper = [part[key] for part, _ in parts for key in ("maximum", "exclusiveMaximum") if key in part]
    above = {floor(value) for value in upper if value != floor(value)}
    below = {ceil(value) for value in lower if value != ceil(value)}
    for part, path in parts:
        least, most = part.get("exclusiveMinimum"), part.get("exclusiveMaximum")
        if least is not None and least >= 0 and least in above:
            raise GrammarSpecError(
                f"{path}/exclusiveMinimum: {least} with an upper bound below {floor(least) + 1} is not supported for "
                f"numbers; write a minimum a little above {least}"
            )
        if most is not None and most <= 0 and most in below:
            raise GrammarSpecError(
                f"{path}/exclusiveMaximum: {most} with a lower bound above {ceil(most) - 1} is not supported for "
                f"numbers; write a maximum a little below {most}"
            )
