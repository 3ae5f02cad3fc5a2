"""Bounds the lengths of strings that a lexer has to count: it has states for every place of every bounded string.

Nine a character where any will do, and at the limit of states the output ends, and those of others with the same
grammar. So bounds whose lexer cannot be held are refused before.
"""

from __future__ import annotations

from typing import Any

from blade_llm.sampling.guided import limits
from blade_llm.sampling.guided.errors import GrammarSpecError


class TextLengths:
    """The different ``minLength`` and ``maxLength`` of schemas. Strings of the same bounds share their states."""

    def __init__(self) -> None:
        self._found: set[tuple[int, int, str, str]] = set()

    def add(self, schema: dict[str, Any]) -> None:
        """Another part of a schema, its keywords checked."""
        least, most = schema.get("minLength", 0), schema.get("maxLength", 0)
        if least or most:
            self._found.add((least, most, schema.get("pattern", ""), schema.get("format", "")))

    def check(self) -> None:
        """Raise :class:`GrammarSpecError` where counting so far would take too many states."""
        total = sum(max(least, most) for least, most, _, _ in self._found)
        if total > limits.MAX_LENGTHS:
            raise GrammarSpecError(
                f"the different bounds of strings (minLength, maxLength) add up to {total} characters; the limit is "
                f"{limits.MAX_LENGTHS}: leave them out where strings are long"
            )
