"""How llguidance is to write the outputs of a JSON Schema.

An object's further keys are "any string but the listed ones" as text: spelled with ``\\u`` escapes a listed key passes
for a further one, with any value. So outputs have no such escapes, except where a schema needs characters that need
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.references import dictionaries

_OPTIONS: Final[dict[str, Any]] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": False,
    "lenient": False,
}
_SHORT_ESCAPES: Final = 'nrbtf\\"'
_LONG_ESCAPES: Final = _SHORT_ESCAPES + "u"
_NEEDS_LONG: Final = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_NAMES_LONG: Final = re.compile(r"\\x[01]|\\x7[fF]|\\u00[01]|\\u007[fF]|\\[av]|\\c[A-Z]|\\p\{?C|:cntrl:|\\[xu]\{")
"""In a pattern."""
_EXCLUDING: Final = re.compile(r"\[\^(\\.|[^\]\\])*\]")

_DATA: Final = ("const", "enum")


def json_options(schema: dict[str, Any]) -> dict[str, Any]:
    """llguidance's options for ``schema``, rewritten before.

    Raises :class:`GrammarSpecError` where a value needs an escape that would let keys escape their schemas.
    """
    escapes = _SHORT_ESCAPES
    if needing := _needing(schema):
        if any(map(_is_open, dictionaries(schema))):
            raise GrammarSpecError(
                f"{needing[0]!r} has a control character that is written as an escape, which is supported only where "
                'no object lists properties and has others too; write "additionalProperties": false into each'
            )
        escapes = _LONG_ESCAPES
    return {**_OPTIONS, "json_allowed_escapes": escapes}


def _is_open(schema: dict[str, Any]) -> bool:
    """Whether listed keys can be distinguished from others."""
    listed = ("properties", "patternProperties", "required")
    return any(schema.get(keyword) for keyword in listed) and schema.get("additionalProperties") is not False


def _needing(schema: dict[str, Any]) -> list[str]:
    """Values and patterns with characters that have no short escape."""
    found = []
    for part in dictionaries(schema):
        for keyword in _DATA:
            found += [text for text in _texts(part.get(keyword)) if _NEEDS_LONG.search(text)]
        pattern = part.get("pattern")
        if isinstance(pattern, str):
            wanted = _EXCLUDING.sub("", pattern)
            if _NEEDS_LONG.search(wanted) or _NAMES_LONG.search(wanted):
                found.append(pattern)
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
