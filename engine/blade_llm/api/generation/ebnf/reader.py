"""Reads grammars in GBNF, the EBNF of llama.cpp, xgrammar, SGLang and vLLM.

https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md: rules, literals, character classes, ``.``, groups,
``|``, ``* + ? {m,n}`` and comments. What others added (look-ahead, tokens, functions) is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

ROOT: Final = "root"
_DEFINITION: Final = re.compile(r"(?m)^[^\S\n]*+[A-Za-z_][\w.-]*+\s*+::=")
"""Like the next ones without going back: a client's text must not take time that grows with its square."""
_TOKEN: Final = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
    |(?P<name>[A-Za-z_][\w.-]*+)(?P<defines>\s*+::=)?
    |(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<set>\[(?:[^\]\\]|\\.)*\])
    |(?P<repeat>[*+?]|\{\s*+\d++\s*+(?:,\s*+\d*+\s*+)?\})
    |(?P<mark>[()|.,])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|u\{([0-9A-Fa-f]{1,8})\}|(.))", re.DOTALL
)
_NAMED: Final = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "f": "\f", "v": "\v", "a": "\a", "b": "\b", "e": "\x1b"}
_TIMES: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_LONGEST_NUMBER: Final = 6
"""Digits."""
_LAST: Final = 0x10FFFF
_MAX_DEPTH: Final = 100
"""Groups in groups."""


class EbnfError(Exception):
    """A grammar that cannot be rewritten. The message says what to change."""


Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Code points: first and last of each range, in order and apart."""


@dataclass(frozen=True, slots=True)
class CharacterClass:
    """One character out of ``ranges``."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Reference:
    """To a rule."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """One of several sequences."""

    alternatives: list[list[Repeated]]


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """A part of a sequence, ``least`` to ``most`` times; ``most`` None: any number."""

    item: str | CharacterClass | Reference | Choice
    """A string: a literal."""
    least: int = 1
    most: int | None = 1


def is_ebnf(grammar: str) -> bool:
    """Whether a grammar defines its rules with ``::=``, which Lark does not know."""
    return _DEFINITION.search(grammar) is not None


def read_rules(grammar: str) -> dict[str, Choice]:
    """The rules by name; all that are named are there. Raises :class:`EbnfError`."""
    rules = _Reader(grammar).rules()
    if ROOT not in rules:
        raise EbnfError(f"there is no rule {ROOT!r}, with which a grammar in EBNF begins")
    for name, body in rules.items():
        _check_names(body, rules, name)
    return rules


def complement(ranges: Ranges) -> Ranges:
    """All other characters."""
    found, begin = [], 0
    for first, last in ranges:
        if begin < first:
            found.append((begin, first - 1))
        begin = last + 1
    return (*found, *([(begin, _LAST)] if begin <= _LAST else []))


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                line = text.count("\n", 0, position) + 1
                raise EbnfError(f"line {line}: {text[position : position + 20]!r} is not understood; write GBNF")
            position = match.end()
            kind = next(name for name in ("space", "name", "text", "set", "repeat", "mark") if match[name] is not None)
            if kind != "space":
                self._tokens.append(("rule" if match["defines"] else kind, match[kind]))
        self._tokens.append(("end", ""))
        self._position = 0

    def rules(self) -> dict[str, Choice]:
        found: dict[str, Choice] = {}
        while self._peek()[0] != "end":
            kind, name = self._take()
            if kind != "rule":
                raise EbnfError(f"{name!r} stands where a rule should begin: NAME ::= …")
            if name in found:
                raise EbnfError(f"rule {name!r} is defined twice")
            found[name] = self._choice(0)
        return found

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._position]

    def _take(self) -> tuple[str, str]:
        self._position += 1
        return self._tokens[self._position - 1]

    def _choice(self, depth: int) -> Choice:
        if depth > _MAX_DEPTH:
            raise EbnfError(f"groups stand in each other more than {_MAX_DEPTH} deep")
        alternatives: list[list[Repeated]] = [[]]
        while True:
            kind, text = self._peek()
            if kind in ("end", "rule") or text == ")":
                if (text == ")") != (depth > 0):
                    raise EbnfError("a bracket is not closed" if depth else "a bracket closes that was not opened")
                return Choice(alternatives)
            self._take()
            match kind, text:
                case "mark", "|":
                    alternatives.append([])
                case "mark", "(":
                    item = self._choice(depth + 1)
                    self._take()
                    alternatives[-1].append(self._repeated(item))
                case "mark", ".":
                    alternatives[-1].append(self._repeated(CharacterClass(complement(()))))
                case "text", _:
                    alternatives[-1].append(self._repeated(_unescaped(text[1:-1])))
                case "set", _:
                    alternatives[-1].append(self._repeated(_set(text[1:-1])))
                case "name", _:
                    if text in _FUNCTIONS and self._peek() == ("mark", "("):
                        raise EbnfError(f"{text}(…) is xgrammar's own and not supported; write rules")
                    alternatives[-1].append(self._repeated(Reference(text)))
                case "repeat", _:
                    raise EbnfError(f"{text!r} repeats nothing")
                case _:
                    raise EbnfError(f"{text!r} is not understood; write GBNF")

    def _repeated(self, item: str | CharacterClass | Reference | Choice) -> Repeated:
        found = Repeated(item)
        while self._peek()[0] == "repeat":
            text = self._take()[1]
            least, most = _TIMES.get(text) or _times(text)
            item = found.item if (found.least, found.most) == (1, 1) else Choice([[found]])
            found = Repeated(item, least, most)
        return found


def _times(text: str) -> tuple[int, int | None]:
    """``{m}``, ``{m,}`` or ``{m,n}``."""
    first, comma, last = re.sub(r"\s", "", text)[1:-1].partition(",")
    if max(len(first), len(last)) > _LONGEST_NUMBER:
        raise EbnfError(f"{text[:20]} repeats too often")
    least = int(first)
    most = int(last) if last else None if comma else least
    if most is not None and most < least:
        raise EbnfError(f"{text} repeats at most {most} and at least {least} times")
    return least, most


_FUNCTIONS: Final = frozenset({"TagDispatch", "TokenTagDispatch", "EmptyStr", "Token", "ExcludeToken", "Repeat"})


def _characters(text: str) -> list[tuple[str, bool]]:
    """Characters, and whether each was escaped."""
    found, position = [], 0
    while position < len(text):
        match = _ESCAPE.match(text, position)
        if match is None:
            found.append((text[position], False))
            position += 1
            continue
        code = match[1] or match[2] or match[3] or match[4]
        if code is not None and (int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xE000):
            raise EbnfError(f"{match[0]} is no character")
        found.append((chr(int(code, 16)) if code is not None else _NAMED.get(match[5], match[5]), True))
        position = match.end()
    return found


def _unescaped(text: str) -> str:
    return "".join(character for character, _ in _characters(text))


def _set(text: str) -> CharacterClass:
    characters = _characters(text)
    negated = characters[:1] == [("^", False)]
    rest = characters[negated:]
    ranges: list[tuple[int, int]] = []
    position = 0
    while position < len(rest):
        first = last = rest[position][0]
        if rest[position + 1 : position + 2] == [("-", False)] and position + 2 < len(rest):
            last = rest[position + 2][0]
            position += 2
        if last < first:
            raise EbnfError(f"[{text}]: {first!r} comes after {last!r}; write {last}-{first}")
        ranges.append((ord(first), ord(last)))
        position += 1
    if not ranges:
        raise EbnfError(f"[{text}] has no characters")
    joined = [sorted(ranges)[0]]
    for low, high in sorted(ranges)[1:]:
        if low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return CharacterClass(complement(tuple(joined)) if negated else tuple(joined))


def _check_names(choice: Choice, rules: dict[str, Choice], where: str) -> None:
    for alternative in choice.alternatives:
        for repeated in alternative:
            if isinstance(repeated.item, Choice):
                _check_names(repeated.item, rules, where)
            elif isinstance(repeated.item, Reference) and repeated.item.name not in rules:
                raise EbnfError(f"rule {where!r} names {repeated.item.name!r}, which is not defined")
