"""Places in a schema: those that messages name, and those that a ``$ref`` names.

A schema is a client's text and may hold tens of thousands of either, so neither costs more than its own length: places
are written out only in a message, and a reference is resolved once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from blade_llm.sampling.guided.errors import GrammarSpecError


class Place:
    """A JSON pointer as the way to it, which shares its beginning with others. As text only when needed."""

    __slots__ = ("_above", "_key")

    def __init__(self, key: str, above: Place | None = None) -> None:
        self._key = key
        self._above = above

    def __truediv__(self, key: str) -> Place:
        return Place(key, self)

    def __str__(self) -> str:
        keys, place = [], self
        while place._above is not None:
            keys.append(place._key.replace("~", "~0").replace("/", "~1"))
            place = place._above
        return "/".join([place._key, *reversed(keys)])


class References:
    """Resolves the references of the schema ``root``."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[str, Any] = {}
        self._anchors: dict[str, Any] | None = None

    def resolve(self, reference: str, place: Place | str) -> Any:
        """The schema that ``reference``, written at ``place``, names. Raises :class:`GrammarSpecError`."""
        if reference not in self._known:
            self._known[reference] = self._find(reference, place)
        return self._known[reference]

    def _find(self, reference: str, place: Place | str) -> Any:
        own = self._root.get("$id") if isinstance(self._root, dict) else None
        local = reference.removeprefix(own) if isinstance(own, str) else reference
        if not local.startswith("#") and local:
            raise GrammarSpecError(
                f"{place}: external reference {reference!r} is not supported; put the schema under $defs"
            )
        if local in ("", "#"):
            return self._root
        if not local.startswith("#/"):
            if self._anchors is None:
                self._anchors = _anchors(self._root)
            if local[1:] in self._anchors:
                return self._anchors[local[1:]]
            raise GrammarSpecError(f"{place}: {reference!r} does not exist")
        found = self._root
        for part in unquote(local[2:]).split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and len(key) < 10 and int(key) < len(found):
                found = found[int(key)]
            else:
                raise GrammarSpecError(f"{place}: {reference!r} does not exist")
        return found


def _anchors(root: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for schema in dictionaries(root):
        if isinstance(anchor := schema.get("$anchor"), str):
            found.setdefault(anchor, schema)
    return found


def dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    """Every object within ``value``: more than the schemas in it, never less."""
    stack = [value]
    while stack:
        found = stack.pop()
        if isinstance(found, dict):
            yield found
            stack += found.values()
        elif isinstance(found, list):
            stack += found
