"""Terminals as automata: V. M. Glushkov, "The abstract theory of automata", Russian Mathematical Surveys 16 (1961).

Each character of an expression is a position; what may stand first and last, and which follow each other, is all there
is to know of its texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from blade_llm.api.generation.ebnf.reader import CharacterClass, Choice, EbnfError, Ranges, Reference, Repeated

_MOST_STEPS: Final = 1_000_000
"""About a second."""


def meet(one: Ranges, other: Ranges) -> bool:
    """Whether they have a character in common."""
    return any(first <= end and begin <= last for first, last in one for begin, end in other)


@dataclass
class Positions:
    """The texts of one expression."""

    rules: Mapping[str, Choice]
    classes: list[Ranges] = field(default_factory=list)
    """Position → characters."""
    follow: list[set[int]] = field(default_factory=list)
    """Position → those that may come next."""
    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)
    nullable: bool = False

    def read(self, sequence: list[Repeated]) -> Positions:
        self.nullable, self.first, self.last = self._sequence(sequence)
        return self

    def _sequence(self, sequence: list[Repeated]) -> tuple[bool, set[int], set[int]]:
        nullable, first, last = True, set[int](), set[int]()
        for repeated in sequence:
            empty, begins, ends = self._repeated(repeated)
            self._join(last, begins)
            first |= begins if nullable else set()
            last = ends | (last if empty else set())
            nullable = nullable and empty
        return nullable, first, last

    def _repeated(self, repeated: Repeated) -> tuple[bool, set[int], set[int]]:
        """Copies in a row, each behind the one before; the last of them comes again if there may be any number."""
        least, most = repeated.least, repeated.most
        first, last, before = set[int](), set[int](), set[int]()
        empty = True
        for number in range(max(least, 1) if most is None else most):
            item_empty, begins, ends = self._item(repeated.item)
            self._join(before, begins)
            if number == 0 or empty:
                first |= begins
            before = ends | (before if item_empty else set())
            empty = empty and item_empty
            last = before if number < least else last | before
        if most is None:
            self._join(before, begins)
        return empty or least == 0, first, last

    def _item(self, item: str | CharacterClass | Reference | Choice) -> tuple[bool, set[int], set[int]]:
        match item:
            case str():
                chain = [self._position(((ord(character),) * 2,)) for character in item]
                for one, after in itertools.pairwise(chain):
                    self.follow[one].add(after)
                return not chain, set(chain[:1]), set(chain[-1:])
            case CharacterClass(ranges):
                only = self._position(ranges)
                return False, {only}, {only}
            case Reference(name):
                return self._item(self.rules[name])
        nullable, first, last = False, set[int](), set[int]()
        for alternative in item.alternatives:
            empty, begins, ends = self._sequence(alternative)
            nullable, first, last = nullable or empty, first | begins, last | ends
        return nullable, first, last

    def _position(self, ranges: Ranges) -> int:
        self.classes.append(ranges)
        self.follow.append(set())
        return len(self.classes) - 1

    def _join(self, ends: set[int], begins: set[int]) -> None:
        for end in ends:
            self.follow[end] |= begins


class Work:
    """Steps that one grammar has taken."""

    def __init__(self) -> None:
        self._steps = 0

    def add(self, steps: int) -> None:
        """Raises :class:`EbnfError` when they are too many."""
        self._steps += steps
        if self._steps > _MOST_STEPS:
            raise EbnfError("it is too large, or where one part ends and the next begins too ambiguous; write Lark")


def continuations(one: Positions, other: Positions, work: Work) -> set[Ranges]:
    """What may come next in a text of ``other`` that so far is a whole text of ``one``. Raises :class:`EbnfError`."""
    work.add(1 + len(one.first) * len(other.first))
    found: set[Ranges] = set()
    pairs = [(a, b) for a in one.first for b in other.first if meet(one.classes[a], other.classes[b])]
    seen = set(pairs)
    while pairs:
        a, b = pairs.pop()
        if a in one.last:
            found |= {other.classes[after] for after in other.follow[b]}
        work.add(len(one.follow[a]) * len(other.follow[b]))
        for after_a in one.follow[a]:
            for after_b in other.follow[b]:
                pair = (after_a, after_b)
                if pair not in seen and meet(one.classes[after_a], other.classes[after_b]):
                    seen.add(pair)
                    pairs.append(pair)
    return found
