"""How llguidance is to write the outputs of a JSON Schema.

An object's further keys are "any string but the listed ones" as text: spelled with ``\\u`` escapes a listed key passes
for a further one, with any value. So outputs have no such escapes, except where a schema needs characters that need
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.references import dictionaries

OPTIONS: Final = "x-guidance"
"""The keyword of a schema's root under which llguidance, and clients that write its grammars, have options of how JSON
is written: https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md."""
_OPTIONS: Final[dict[str, Any]] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": False,
    "lenient": False,
}
_ALLOWED: Final[dict[str, tuple[Any, ...]]] = {
    "whitespace_flexible": (True, False, None),
    "whitespace_pattern": (None,),
    "item_separator": (",", ", ", None),
    "key_separator": (":", ": ", None),
    "coerce_one_of": (True, False, None),
    "lenient": (False, None),
}
"""Option → the values that outputs can be held to; those that only allow more may be followed by allowing less."""
_SHORT_ESCAPES: Final = 'nrbtf\\"'
_LONG_ESCAPES: Final = _SHORT_ESCAPES + "u"
_NEEDS_LONG: Final = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
_NAMES_LONG: Final = re.compile(r"\\x[01]|\\x7[fF]|\\u00[01]|\\u007[fF]|\\[av]|\\c[A-Z]|\\p\{?C|:cntrl:|\\[xu]\{")
"""In a pattern."""
_EXCLUDING: Final = re.compile(r"\[\^(\\.|[^\]\\])*\]")

_DATA: Final = ("const", "enum")


def without_options(schema: Any) -> Any:
    """A schema as a draft of JSON Schema knows it, without what its root says under `OPTIONS`.

    Raises :class:`GrammarSpecError` for an option that cannot be followed.
    """
    if not isinstance(schema, dict) or OPTIONS not in schema:
        return schema
    options = schema[OPTIONS]
    if not isinstance(options, dict):
        raise GrammarSpecError(f"#/{OPTIONS}: must be an object of options")
    for name, value in options.items():
        if name not in _ALLOWED:
            raise GrammarSpecError(f"#/{OPTIONS}: option {name!r} is not supported; leave it out")
        # by identity as well: 0 and 1 are no booleans
        if not any(value is allowed or (isinstance(value, str) and value == allowed) for allowed in _ALLOWED[name]):
            known = " or ".join(json.dumps(allowed) for allowed in _ALLOWED[name])
            raise GrammarSpecError(f"#/{OPTIONS}/{name} must be {known}, not {json.dumps(value)}: no other is followed")
    return {key: value for key, value in schema.items() if key != OPTIONS}


def requested_options(schema: dict[str, Any]) -> dict[str, Any]:
    """What the root of a schema, checked before, says of llguidance's options.

    Where it allows white space beside its separators, outputs have none; where it allows none and names no separators,
    they are bare. ``coerce_one_of`` is the client's own word that a value may match several cases of a ``oneOf``.
    """
    options = schema.get(OPTIONS)
    if options is None:
        return {}
    found: dict[str, Any] = {"coerce_one_of": options.get("coerce_one_of") is True}
    for name, bare in (("item_separator", ","), ("key_separator", ":")):
        found[name] = options.get(name) or (bare if options.get("whitespace_flexible") is False else _OPTIONS[name])
    return found


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
