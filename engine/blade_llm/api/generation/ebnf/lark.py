"""EBNF in the words of llguidance's Lark.

EBNF reads characters, Lark reads lexemes, and llguidance's are greedy: of ``"a" | "ab"`` before ``"bc"`` it takes
``ab`` and does not go back. One character a lexeme would be right, and far too slow where strings are long. So what
needs no recursion becomes one lexeme, as much at a time as can be without a text in which a lexeme goes on where the
next should begin; where there is one, both are taken apart. The language stays exactly the same.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from blade_llm.api.generation.ebnf.positions import Positions, Work, continuations, meet
from blade_llm.api.generation.ebnf.reader import (
    ROOT,
    CharacterClass,
    Choice,
    EbnfError,
    Ranges,
    Reference,
    Repeated,
    read_rules,
)
from blade_llm.sampling.guided.text import literal

_MOST_POSITIONS: Final = 200
"""Characters of a lexeme's expression."""
MAX_CHARACTERS: Final = 65_536
"""Of a grammar."""
_Follow = set[Ranges]


@dataclass(frozen=True, slots=True)
class _Terminal:
    expression: str
    positions: Positions
    parts: tuple[int, ...]
    """The part of the grammar that it is, to be named when it is taken apart."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    items: list[_Tree]


@dataclass(frozen=True, slots=True)
class _Either:
    options: list[_Tree]


@dataclass(frozen=True, slots=True)
class _Many:
    item: _Tree
    least: int
    most: int | None


_Tree = _Terminal | _Sequence | _Either | _Many | str
"""A string: the name of a rule."""


@functools.lru_cache(maxsize=32)
def lark_of_ebnf(grammar: str) -> str:
    """``grammar`` in Lark's syntax. Raises :class:`EbnfError`.

    Takes up to a second: not for the event loop.
    """
    if len(grammar) > MAX_CHARACTERS:
        raise EbnfError(f"a grammar in EBNF of {len(grammar)} characters is too long; the limit is {MAX_CHARACTERS}")
    work = Work()
    try:
        rules = _Folding(read_rules(grammar))
        while True:
            trees = rules.trees()
            if not rules.take_apart(_Follows(trees, work).conflicts()):
                return _Writer(trees).text()
    except RecursionError:
        raise EbnfError("its rules refer to one another too deeply; write fewer rules") from None


class _Folding:
    """Rules as trees of lexemes, each as large as can be but for those that were taken apart."""

    def __init__(self, rules: dict[str, Choice]) -> None:
        self._rules = rules
        self._apart: set[tuple[int, ...]] = set()
        self._sizes: dict[str, float] = {}
        self._terminals: dict[tuple[int, ...], _Terminal] = {}

    def trees(self) -> dict[str, _Tree]:
        return {name: self._choice(body) for name, body in self._rules.items()}

    def take_apart(self, terminals: list[_Terminal]) -> bool:
        """Take these apart that have parts; whether there was one."""
        before = len(self._apart)
        self._apart |= {terminal.parts for terminal in terminals if any(terminal.positions.follow)}
        return len(self._apart) > before

    def _choice(self, choice: Choice) -> _Tree:
        whole = self._terminal([Repeated(choice)], (id(choice),))
        if whole is not None:
            return whole
        return _Either([self._sequence(alternative) for alternative in choice.alternatives])

    def _sequence(self, sequence: list[Repeated]) -> _Tree:
        """From the front: as many parts as make one lexeme, again and again."""
        items: list[_Tree] = []
        begin = 0
        while begin < len(sequence):
            end, size = begin, 0.0
            while end < len(sequence) and (size := size + self._size_of(sequence[end : end + 1])) <= _MOST_POSITIONS:
                end += 1
            while end > begin + 1:
                whole = self._terminal(sequence[begin:end], (id(sequence), begin, end))
                if whole is not None:
                    items.append(whole)
                    break
                end -= 1
            else:
                items.append(self._repeated(sequence[begin]))
                end = begin + 1
            begin = end
        return items[0] if len(items) == 1 else _Sequence(items)

    def _repeated(self, repeated: Repeated) -> _Tree:
        whole = self._terminal([repeated], (id(repeated),))
        if whole is not None:
            return whole
        item = self._item(repeated)
        return item if (repeated.least, repeated.most) == (1, 1) else _Many(item, repeated.least, repeated.most)

    def _item(self, repeated: Repeated) -> _Tree:
        match repeated.item:
            case Reference(name):
                return name
            case Choice():
                return self._choice(repeated.item)
        whole = self._terminal([Repeated(repeated.item)], (id(repeated), 1))
        if whole is not None:
            return whole
        assert isinstance(repeated.item, str)
        characters = [
            self._terminal([Repeated(each)], (id(repeated), 1, number)) for number, each in enumerate(repeated.item)
        ]
        return _Sequence([each for each in characters if each is not None])

    def _terminal(self, sequence: list[Repeated], parts: tuple[int, ...]) -> _Terminal | None:
        """None: it has to stay apart."""
        if parts in self._apart:
            return None
        if parts not in self._terminals:
            positions = None
            if self._size_of(sequence) <= _MOST_POSITIONS or _is_literal(sequence):
                positions = Positions(self._rules).read(sequence)
            if positions is None or not positions.classes:  # an empty text is no lexeme
                self._apart.add(parts)
                return None
            self._terminals[parts] = _Terminal(_expression(sequence, self._rules), positions, parts)
        return self._terminals[parts]

    def _size_of(self, sequence: list[Repeated]) -> float:
        """Positions, and one for each empty text, as reading it takes time, too; infinite for what needs recursion."""
        return sum(self._size(each.item) * (each.most or each.least + 1) for each in sequence)

    def _size(self, item: str | CharacterClass | Reference | Choice) -> float:
        match item:
            case str():
                return len(item) or 1
            case CharacterClass():
                return 1
            case Reference(name):
                if name not in self._sizes:
                    self._sizes[name] = float("inf")  # as long as it is not known: it needs itself
                    self._sizes[name] = self._size(self._rules[name])
                return self._sizes[name]
        return sum(self._size_of(alternative) or 1 for alternative in item.alternatives)


class _Follows:
    """What may come after each lexeme."""

    def __init__(self, trees: Mapping[str, _Tree], work: Work) -> None:
        self._trees = trees
        self._work = work
        self._nullable: dict[str, bool] = dict.fromkeys(trees, False)
        self._first: dict[str, _Follow] = {name: set() for name in trees}
        self._after: dict[str, _Follow] = {name: set() for name in trees}
        self._terminals: dict[str, _Terminal] = {}
        self._after_terminal: dict[str, _Follow] = {}

    def conflicts(self) -> list[_Terminal]:
        """Lexemes that go on, in some text, where another should begin."""
        changed = True
        while changed:
            changed = False
            for name, tree in self._trees.items():
                nullable, first = self._begins(tree)
                if nullable != self._nullable[name] or first != self._first[name]:
                    self._nullable[name], self._first[name], changed = nullable, first, True
        while True:
            before = sum(map(len, self._after.values()))
            for name, tree in self._trees.items():
                self._walk(tree, self._after[name])
            if sum(map(len, self._after.values())) == before:
                break
        found = []
        for text, one in self._terminals.items():
            after = self._after_terminal[text]
            for other in self._terminals.values():
                going_on = continuations(one.positions, other.positions, self._work)
                self._work.add(len(going_on) * len(after))
                if any(meet(a, b) for a in going_on for b in after):
                    found += [one, other]
        return found

    def _begins(self, tree: _Tree) -> tuple[bool, _Follow]:
        """Whether it may be empty, and what it may begin with."""
        self._work.add(1)
        match tree:
            case str():
                return self._nullable[tree], self._first[tree]
            case _Terminal():
                positions = tree.positions
                return positions.nullable, {positions.classes[position] for position in positions.first}
            case _Either(options):
                found = [self._begins(option) for option in options]
                return any(empty for empty, _ in found), set[Ranges]().union(*(first for _, first in found))
            case _Many(item, least, _):
                nullable, first = self._begins(item)
                return nullable or least == 0, first
        begins: _Follow = set()
        for item in tree.items:
            nullable, first = self._begins(item)
            begins |= first
            if not nullable:
                return False, begins
        return True, begins

    def _walk(self, tree: _Tree, after: _Follow) -> None:
        match tree:
            case str():
                self._after[tree] |= after
            case _Terminal():
                self._terminals.setdefault(tree.expression, tree)
                self._after_terminal.setdefault(tree.expression, set()).update(after)
            case _Either(options):
                for option in options:
                    self._walk(option, after)
            case _Many(item, _, most):
                self._walk(item, after if most == 1 else after | self._begins(item)[1])
            case _Sequence(items):
                for item in reversed(items):
                    self._walk(item, after)
                    nullable, first = self._begins(item)
                    after = after | first if nullable else first


class _Writer:
    def __init__(self, trees: Mapping[str, _Tree]) -> None:
        self._trees = trees
        self._names = _lark_names(list(trees))
        self._optional: dict[str, str] = {}
        """Expressions that match nothing, too → terminals that do not."""

    def text(self) -> str:
        rules = [f"{self._names[name]}: {self._written(tree, outermost=True)}" for name, tree in self._trees.items()]
        return "\n".join([*rules, *(f"{name}: {body} & /(.|\\n)+/" for body, name in self._optional.items()), ""])

    def _written(self, tree: _Tree, *, outermost: bool = False) -> str:
        match tree:
            case str():
                return self._names[tree]
            case _Terminal(expression, positions, _):
                if not positions.nullable:
                    return expression
                return self._optional.setdefault(expression, f"PART_{len(self._optional)}") + "?"
            case _Sequence(items):
                return " ".join(self._flat(items)) or '""'
            case _Either(options):
                text = " | ".join(self._written(option) for option in options)
                return text if outermost else f"({text})"
            case _Many(item, least, most):
                return f"({self._written(item)}){_times(least, most)}"

    def _flat(self, items: list[_Tree]) -> Iterator[str]:
        for item in items:
            if isinstance(item, _Sequence):
                yield from self._flat(item.items)
            else:
                yield self._written(item)


def _times(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return short.get((least, most)) or f"{{{least},{'' if most is None else most}}}"


def _expression(sequence: list[Repeated], rules: Mapping[str, Choice]) -> str:
    """A lexeme as Lark writes it: a string if it is a literal."""
    if _is_literal(sequence):
        return literal(str(sequence[0].item))
    return f"/{_regular(sequence, rules)}/"


def _is_literal(sequence: list[Repeated]) -> bool:
    """A text and no more, which is one lexeme however long it is."""
    if len(sequence) != 1 or (sequence[0].least, sequence[0].most) != (1, 1):
        return False
    return isinstance(sequence[0].item, str)


def _regular(sequence: list[Repeated], rules: Mapping[str, Choice]) -> str:
    return "".join(_regular_item(each.item, rules) + _repeat(each) for each in sequence)


def _repeat(repeated: Repeated) -> str:
    return "" if (repeated.least, repeated.most) == (1, 1) else _times(repeated.least, repeated.most)


def _regular_item(item: str | CharacterClass | Reference | Choice, rules: Mapping[str, Choice]) -> str:
    match item:
        case str():
            return f"({''.join(map(_escaped, item))})"
        case CharacterClass(ranges):
            inside = "".join(f"{_escaped(chr(a))}-{_escaped(chr(b))}" if a < b else _escaped(chr(a)) for a, b in ranges)
            return f"[{inside}]"
        case Reference(name):
            return _regular_item(rules[name], rules)
    return f"({'|'.join(_regular(alternative, rules) for alternative in item.alternatives)})"


def _escaped(character: str) -> str:
    return character if character.isascii() and character.isalnum() else rf"\x{{{ord(character):x}}}"


def _lark_names(rules: list[str]) -> dict[str, str]:
    """Name → one that Lark takes for a rule's, all different."""
    names, taken = {ROOT: "start"}, {"start"}
    for rule in rules:
        if rule == ROOT:
            continue
        name = base = re.sub(r"[^a-z0-9_]", "_", rule.lower().lstrip("_")) or "rule"
        if not base[0].isalpha():
            name = base = f"rule_{base}"
        number = 2
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        names[rule] = name
    return names
