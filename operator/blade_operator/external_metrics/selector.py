"""Label selectors as they stand in a request's ``labelSelector``: ``a=b,c!=d,e in (f,g),h notin (i),j,!k``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

LONGEST = 4096
"""Characters of a selector."""

_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<key>{_KEY})\s*(?:(?P<sign>==|=|!=)\s*(?P<value>{_VALUE})"
    rf"|(?P<word>\s(?:in|notin))\s*\((?P<values>[^()]*)\))?|!\s*(?P<absent>{_KEY}))\s*(?:,|$)"
)
_ONE = re.compile(rf"\s*({_VALUE})\s*\Z")


@dataclass(frozen=True, slots=True)
class Requirement:
    """What the value of one label must be."""

    key: str
    values: frozenset[str] | None
    """None: any."""
    negated: bool = False
    """The label must be absent or have another value."""

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Whether ``labels`` meet it."""
        found = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return found is not self.negated


def parse(text: str) -> tuple[Requirement, ...]:
    """The requirements of a selector, all of which labels must meet; none for an empty one.

    Raises:
        ValueError: with what is wrong.
    """
    if len(text) > LONGEST:
        raise ValueError(f"a label selector may have {LONGEST} characters, this one has {len(text)}")
    if text.rstrip().endswith(","):
        raise ValueError(f"label selector: {text[-100:]!r} ends with a comma")
    found, place = list[Requirement](), 0
    while place < len(text):
        match = _REQUIREMENT.match(text, place)
        if match is None:
            raise ValueError(
                f"label selector: {text[place:][:100]!r} is not KEY=VALUE, KEY!=VALUE, KEY in (A,B), KEY notin (A,B), "
                "KEY or !KEY"
            )
        found.append(_requirement(match))
        place = match.end()
    return tuple(found)


def only(requirements: tuple[Requirement, ...], key: str) -> frozenset[str] | None:
    """The values that ``key`` may have; None where any may do."""
    for each in requirements:
        if each.key == key and each.values is not None and not each.negated:
            return each.values
    return None


def _requirement(match: re.Match[str]) -> Requirement:
    if match["absent"]:
        return Requirement(match["absent"], None, negated=True)
    if match["sign"]:
        return Requirement(match["key"], frozenset({match["value"]}), negated=match["sign"] == "!=")
    if match["word"]:
        return Requirement(match["key"], _values(match["values"]), negated=match["word"].strip() == "notin")
    return Requirement(match["key"], None)


def _values(text: str) -> frozenset[str]:
    values = set()
    for part in text.split(","):
        match = _ONE.match(part)
        if match is None:
            raise ValueError(f"label selector: {part.strip()[:100]!r} is not the value of a label")
        values.add(match[1])
    return frozenset(values)
