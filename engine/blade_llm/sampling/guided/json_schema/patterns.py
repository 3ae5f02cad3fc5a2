"""Patterns with look-aheads, which llguidance's expressions lack, where others mean the same.

Look-aheads at the beginning are further patterns of the same string. Those in pydantic's pattern of a ``Decimal`` are
known by their text.
"""

from __future__ import annotations

import re
from typing import Final

_LONGEST: Final = 2_000
"""Characters of a pattern that is read here."""
_MOST_DIGITS: Final = 60
_DECIMAL: Final = re.compile(
    r"\^\(\?!\^\[-\+\.\]\*\$\)\[\+-\]\?0\*"
    r"(?:(?P<any>\\d\*\\\.\?\\d\*\$)"
    r"|\\d\*\\\.\?\\d\{0,(?P<places>\d+)\}0\*\$"
    r"|\(\?:\\d\{0,(?P<whole>\d+)\}\|\(\?=\[\\d\.\]\{1,(?P<most>\d+)\}0\*\$\)"
    r"(?:\\d\*\\\.\\d\*0\*\$|\\d\{0,\d+\}\\\.\\d\{0,(?P<after>\d+)\}0\*\$)\))"
)
"""Without bounds; with ``decimal_places``; with ``max_digits``, and perhaps both."""


def without_look_aheads(pattern: str) -> list[str]:
    """Patterns that a string matches if, and for a ``Decimal`` only if, it matches ``pattern``.

    One that cannot be written so is returned as it is, and llguidance refuses it.
    """
    if "(?" not in pattern or len(pattern) > _LONGEST:
        return [pattern]
    if (decimal := _DECIMAL.fullmatch(pattern)) is not None:
        return [_decimal(decimal)]
    if not pattern.startswith("^") or "|" in _outside_groups(pattern):
        return [pattern]
    found, rest = [], pattern[1:]
    while rest.startswith("(?=") and (end := _closing(rest)):
        found.append(f"^(?:{rest[3:end]})")
        rest = rest[end + 1 :]
    return [*found, "^" + rest]


def _decimal(found: re.Match[str]) -> str:
    if found["any"]:
        return r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)$"
    if found["places"]:
        after = int(found["places"])
        return rf"^[+-]?[0-9]+{_fraction(after)}$"
    digits = int(found["most"]) - 1
    if digits > _MOST_DIGITS:
        return r"^[+-]?[0-9]{1,30}(\.[0-9]{1,30})?$"
    if found["after"] is not None:
        after = min(int(found["after"]), digits)
        whole = digits - after
        before = rf"(0|[1-9][0-9]{{0,{whole - 1}}})" if whole > 0 else "0"
        return rf"^[+-]?{before}{_fraction(after)}$"
    cases = [rf"[1-9][0-9]{{{whole - 1}}}(\.[0-9]{{0,{digits - whole}}})?" for whole in range(1, digits + 1)]
    return rf"^[+-]?({'|'.join(cases)}|0?\.[0-9]{{1,{digits}}}|0)$"


def _fraction(digits: int) -> str:
    return rf"(\.[0-9]{{1,{digits}}})?" if digits else ""


def _closing(text: str) -> int:
    """Where the group that ``text`` begins with ends; 0: nowhere."""
    depth, position, inside = 0, 0, False
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 1
        elif inside:
            inside = character != "]"
        elif character == "[":
            inside = True
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return 0


def _outside_groups(text: str) -> str:
    found, position = "", 0
    while position < len(text):
        if text[position] == "(" and (end := _closing(text[position:])):
            position += end + 1
        elif text[position] == "[" and (end := text.find("]", position + 2)) > 0:
            position = end + 1
        else:
            found += text[position : position + 1 + (text[position] == "\\")]
            position += 1 + (text[position] == "\\")
    return found
