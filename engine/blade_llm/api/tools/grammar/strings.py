"""Schemas of strings as regular expressions, for strings that are written without quotes and escapes."""

from __future__ import annotations

from typing import Any, Final

import llguidance

from blade_llm.api.tools.grammar.arguments import ArgumentsError
from blade_llm.api.tools.grammar.rules import ANYTHING, escaped
from blade_llm.sampling.guided.json_schema.formats import EXACT
from blade_llm.sampling.guided.json_schema.patterns import without_look_aheads
from blade_llm.text.tool_parsers.argument_schemas import Steps, TooManySteps, resolved

_MOST_CASES: Final = 32
_DEPTH: Final = 16
_CHARACTERS_A_STEP: Final = 64
_READ_A_STEP: Final = 8
"""Of a pattern, which is read one by one."""
_HOST: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
_BYTE: Final = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FORMATS: Final = {
    "email": rf"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": r"[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}",
    "uri": rf"[a-z][a-z0-9+.-]*:\/\/{_HOST}(:[1-9][0-9]{{0,3}})?(\/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{{2}})*)*"
    r"(\?([A-Za-z0-9._~!$&'()*+,;=:@\/?-]|%[0-9A-F]{2})*)?",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}
"""Never more than what the format allows, sometimes less."""
_Cases = list[tuple[str, ...]]
"""Strings match all expressions of one case."""


def string_texts(schema: Any, root: dict[str, Any], place: str, steps: Steps) -> tuple[_Cases, bool]:
    """What strings follow ``schema``, as cases of regular expressions for Lark; and whether null does.

    Raises :class:`ArgumentsError` for what cannot be said so, and for more than ``steps``.
    """
    try:
        return _texts(schema, root, place, steps, _DEPTH)
    except TooManySteps:
        raise ArgumentsError(f"{place}: refers to other schemas too often; write a simpler one") from None


def _texts(schema: Any, root: dict[str, Any], place: str, steps: Steps, depth: int) -> tuple[_Cases, bool]:
    steps.take()
    if not isinstance(schema, dict):
        return ([()], True) if schema is True else ([], False)
    if depth == 0:
        raise ArgumentsError(f"{place}: references are nested too deeply")
    cases: _Cases = [()]
    null = True
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        cases, null = cases if "string" in names else [], "null" in names
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        steps.take(len(values) // _CHARACTERS_A_STEP)
        steps.take(sum(len(value) for value in values if isinstance(value, str)) // _CHARACTERS_A_STEP)
        strings = [escaped(value) for value in values if isinstance(value, str)]
        cases = [(*case, "|".join(strings)) for case in cases] if strings else []
        null = null and None in values
    steps.take(len(schema.get("pattern", "")) // _READ_A_STEP)
    for expression in _expressions(schema, place):
        cases = [(*case, expression) for case in cases]
    parts = [[part] for part in schema.get("allOf", ())]
    parts += [schema[keyword] for keyword in ("anyOf", "oneOf") if keyword in schema]
    if "$ref" in schema:
        parts.append([resolved(root, schema["$ref"])])
        if parts[-1] == [None]:
            raise ArgumentsError(f"{place}: the reference {schema['$ref']!r} is not supported here; refer to $defs")
    for choice in parts:
        found = [_texts(case, root, place, steps, depth - 1) for case in choice]
        num = len(cases) * sum(len(others) for others, _ in found)
        if num > _MOST_CASES:
            raise ArgumentsError(f"{place}: more than {_MOST_CASES} cases of strings; write fewer")
        steps.take(sum(map(len, cases)) // _CHARACTERS_A_STEP)
        cases = [(*case, *other) for case in cases for others, _ in found for other in others]
        null = null and any(also for _, also in found)
    return cases, null


def _expressions(schema: dict[str, Any], place: str) -> list[str]:
    found = []
    if "minLength" in schema or "maxLength" in schema:
        least, most = schema.get("minLength", 0), schema.get("maxLength")
        if most is not None and least > most:
            raise ArgumentsError(f"{place}: minLength {least} is more than maxLength {most}, so no string follows it")
        found.append(rf"(.|\n){{{least},{'' if most is None else most}}}")
    if "pattern" in schema:
        found += [_searched(part, f"{place}/pattern") for part in without_look_aheads(schema["pattern"])]
    if "format" in schema:
        exact = EXACT.get(schema["format"], {}).get("pattern")
        text = _FORMATS.get(schema["format"]) if exact is None else exact.removeprefix("^").removesuffix("$")
        found += [] if text is None else [text]
    return found


def _searched(pattern: str, place: str) -> str:
    """An expression for strings in which ``pattern`` is found somewhere."""
    anchors: list[int] = []
    has_choice, position, depth, in_class = False, 0, 0, False
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
        elif in_class:
            in_class = character != "]" or pattern[position - 1] == "["
        elif character == "[":
            in_class = True
            position += pattern[position + 1 : position + 2] == "^"
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character in "^$":
            anchors.append(position)
        elif character == "|" and depth == 0:
            has_choice = True
        position += 1
    begins, ends = pattern.startswith("^"), len(pattern) - 1 in anchors and pattern.endswith("$")
    if len(anchors) > begins + ends or (anchors and has_choice):
        raise ArgumentsError(f"{place}: ^ and $ are supported only at the ends of the whole expression; write ^(…|…)$")
    inner = llguidance.regex_to_lark(pattern[begins : len(pattern) - ends], "dws")
    return f"{'' if begins else ANYTHING}({inner}){'' if ends else ANYTHING}"
