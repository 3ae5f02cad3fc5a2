"""Rewrites a JSON Schema for llguidance, so that the outputs validate.

Its dates and times take days and seconds that do not exist, so patterns stand for them. An object's further keys are
"any string but the listed ones" as text: spelled with ``\\u`` escapes a listed key passes for a further one, with any
value. So outputs have no such escapes, except where a schema needs characters that need them.
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

_YEAR: Final = r"([0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_LEAP_YEAR: Final = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DAY: Final = r"((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
_DATE: Final = f"({_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME: Final = rf"{_HOUR}:[0-5][0-9](\.[0-9]{{1,9}})?(Z|[+-]{_HOUR})"
EXACT_FORMATS: Final[dict[str, dict[str, Any]]] = {
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}T{_TIME}$"},
    "int32": {"minimum": -(2**31), "maximum": 2**31 - 1},
    "int64": {"minimum": -(2**63) + 1024, "maximum": 2**63 - 1},  # llguidance keeps bounds as floats
}
"""Format → keywords that mean it."""
_DATA: Final = ("const", "enum")
_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions")


def prepared(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema``, checked before, with keywords that llguidance follows exactly. The original is not changed."""
    made: dict[str, Any] = _exact(schema, names=False)
    return made


def json_options(schema: dict[str, Any]) -> dict[str, Any]:
    """llguidance's options for ``schema``.

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


def _exact(value: Any, *, names: bool) -> Any:
    """``names``: the keys are names and not keywords."""
    if isinstance(value, list):
        return [_exact(item, names=False) for item in value]
    if not isinstance(value, dict):
        return value
    made = {
        key: item if key in _DATA and not names else _exact(item, names=not names and key in _MAPS)
        for key, item in value.items()
        if names or key != "uniqueItems"  # was false
    }
    name = None if names else made.get("format")
    if isinstance(name, str) and name in EXACT_FORMATS:
        del made["format"]
        parts = made.get("allOf", [])
        made["allOf"] = [*(parts if isinstance(parts, list) else []), EXACT_FORMATS[name]]
    return made


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
