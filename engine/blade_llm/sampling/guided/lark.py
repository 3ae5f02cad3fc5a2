"""What has to be known of a grammar's text before llguidance compiles it.

llguidance accepts left recursion and rules that never end; the first costs more with every token, the second never lets
an answer finish. Both are found here, by reading the rules (not the terminals, where llguidance refuses recursion
itself). Schemas written into a grammar (``%json {…}``) are found too: they obey the same rules as others.

This is no full parser: a grammar with constructs it does not know is left to llguidance alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from blade_llm.sampling.guided.errors import StructureError

_TOKEN: Final = re.compile(
    r"""(?P<newline>\n)|(?P<space>[^\S\n]+|//[^\n]*|\#[^\n]*)|(?P<string>"(?:\\.|[^"\\\n])*"i?)
    |(?P<json>%json\s*(?=\{))|(?P<directive>%\w+)|(?P<regex>/(?:\\.|[^/\\\n])+/\w*)|(?P<special><[^>\n]*>)
    |(?P<repeat>\{\s*\d*\s*,?\s*\d*\s*\})|(?P<name>[A-Za-z_][\w-]*)|(?P<alias>->\s*\w+)|(?P<operator>.)""",
    re.VERBOSE,
)
_Expression = list[list["_Item"]]
"""Alternatives, each a sequence."""


@dataclass(frozen=True, slots=True)
class _Item:
    atom: str | _Expression | None
    """A rule's name, a group, or None for anything that matches text."""
    optional: bool


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    value: Any = None
    """A schema, for ``json``."""


class _Unknown(Exception):
    """A construct this reader does not know."""


def with_json_options(text: str, prepare: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """``text`` with each of its schemas as ``prepare`` makes it, llguidance's options included."""
    parts, end = [], 0
    for token in _tokens(text):
        if token.kind == "json" and isinstance(token.value, dict):
            parts += [text[end : token.start], "%json ", json.dumps(prepare(token.value))]
            end = token.start + len(token.text)
    return "".join([*parts, text[end:]])


def embedded_schemas(text: str) -> list[dict[str, Any]]:
    """The schemas written into a grammar, in order."""
    return [token.value for token in _tokens(text) if token.kind == "json" and isinstance(token.value, dict)]


def check_recursion(text: str) -> None:
    """Raise :class:`StructureError` for left recursion and for a start rule that cannot end."""
    try:
        rules = _rules([token for token in _tokens(text) if token.kind != "space"])
    except (_Unknown, IndexError, RecursionError):
        return
    nullable = _fixpoint(rules, lambda item, known: item.optional or _in(item, known))
    lefts = {name: _first(expression, nullable) for name, expression in rules.items()}
    if cycle := _cycle(lefts):
        name = cycle[0]
        raise StructureError(
            f"left recursion: {' → '.join([*cycle, name])}; write repetition instead, "
            f'for example {name}: item ("," item)*'
        )
    ending = _fixpoint(rules, lambda item, known: item.optional or _leaves(item, rules) or _in(item, known))
    if "start" in rules and "start" not in ending:
        raise StructureError("rule start never ends: each of its alternatives leads back into itself")


def _tokens(text: str) -> list[_Token]:
    found, position = [], 0
    decoder = json.JSONDecoder()
    while match := _TOKEN.match(text, position):
        kind, end, value = str(match.lastgroup), match.end(), None
        if kind == "json":
            try:
                value, end = decoder.raw_decode(text, match.end())
            except (ValueError, RecursionError):
                kind = "directive"
        found.append(_Token(kind, text[match.start() : end], match.start(), value))
        position = end
    return found


def _rules(tokens: list[_Token]) -> dict[str, _Expression]:
    """Rule → its alternatives."""
    rules: dict[str, _Expression] = {}
    tokens = [*tokens, _Token("newline", "\n", 0), _Token("end", "", 0)]
    position = 0
    while tokens[position].kind != "end":
        token = tokens[position]
        if token.kind == "directive":
            while tokens[position].kind != "newline":
                position += 1
        elif token.kind == "newline" or token.text in "?!":
            position += 1
        elif body := _definition(tokens, position):
            expression, position = _alternatives(tokens, body)
            rules[token.text] = expression
        else:
            raise _Unknown
    return rules


def _definition(tokens: list[_Token], position: int) -> int:
    """Where the body of the rule begins that is defined at ``position``; 0 when none is."""
    if tokens[position].kind != "name":
        return 0
    position += 1
    if tokens[position].text == "[":
        while tokens[position].text != "]":
            position += 1
        position += 1
    return position + 1 if tokens[position].text == ":" else 0


def _alternatives(tokens: list[_Token], position: int, closing: str = "") -> tuple[_Expression, int]:
    """The expression at ``position`` up to ``closing``, or to the end of the rule, and where it ends."""
    expression: _Expression = [[]]
    while True:
        token = tokens[position]
        if token.kind == "newline" and not closing:
            following = position
            while tokens[following].kind == "newline":
                following += 1
            if tokens[following].text != "|":
                return expression, following
            position = following
            continue
        position += 1
        if token.kind == "newline" or token.kind == "alias":
            continue
        if closing and token.text == closing:
            return expression, position
        if token.text == "|":
            expression.append([])
        elif token.text in ("(", "["):
            group, position = _alternatives(tokens, position, {"(": ")", "[": "]"}[token.text])
            position = _append(expression[-1], group, tokens, position, optional=token.text == "[")
        elif token.kind == "name":
            atom = token.text if token.text.lstrip("_")[:1].islower() else None
            position = _append(expression[-1], atom, tokens, position)
        elif token.kind in ("string", "regex", "special", "json"):
            position = _append(expression[-1], None, tokens, position, optional=token.text in ('""', '""i'))
        else:
            raise _Unknown


def _append(
    sequence: list[_Item],
    atom: str | _Expression | None,
    tokens: list[_Token],
    position: int,
    *,
    optional: bool = False,
) -> int:
    """Add an item with the operator that follows it; returns where that ends."""
    token = tokens[position]
    if token.kind == "repeat":
        optional |= token.text.strip("{ ").startswith(("0", ","))
        position += 1
    elif token.text in ("?", "*", "+"):
        optional |= token.text != "+"
        position += 1
    sequence.append(_Item(atom, optional))
    return position


def _leaves(item: _Item, rules: dict[str, _Expression]) -> bool:
    """Text, or a name that is none of the grammar's rules."""
    return item.atom is None or (isinstance(item.atom, str) and item.atom not in rules)


def _in(item: _Item, known: set[str]) -> bool:
    return isinstance(item.atom, str) and item.atom in known


def _fixpoint(rules: dict[str, _Expression], holds: Any) -> set[str]:
    """Rules with an alternative whose items all hold, ``holds`` being told the rules known so far."""
    known: set[str] = set()

    def item_holds(item: _Item) -> bool:
        return holds(item, known) or (isinstance(item.atom, list) and expression_holds(item.atom))

    def expression_holds(expression: _Expression) -> bool:
        return any(all(map(item_holds, sequence)) for sequence in expression)

    while True:
        more = {name for name, expression in rules.items() if name not in known and expression_holds(expression)}
        if not more:
            return known
        known |= more


def _first(expression: _Expression, nullable: set[str]) -> set[str]:
    """Rules that may stand at the very beginning."""
    found: set[str] = set()
    for sequence in expression:
        for item in sequence:
            if isinstance(item.atom, list):
                found |= _first(item.atom, nullable)
            elif item.atom is not None:
                found.add(item.atom)
            empty = isinstance(item.atom, list) and any(
                all(inner.optional or _in(inner, nullable) for inner in inside) for inside in item.atom
            )
            if not (item.optional or empty or _in(item, nullable)):
                break
    return found


def _cycle(edges: dict[str, set[str]]) -> list[str]:
    """Rules that lead back to the first of them; empty when there are none. Iterative: chains can be long."""
    done: set[str] = set()
    for origin in edges:
        path: list[str] = []
        stack = [(origin, iter(sorted(edges[origin])))] if origin not in done else []
        path = [origin] if stack else []
        on_path = set(path)
        while stack:
            name, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                done.add(path.pop())
                on_path.discard(name)
            elif following in on_path:
                return path[path.index(following) :]
            elif following in edges and following not in done:
                path.append(following)
                on_path.add(following)
                stack.append((following, iter(sorted(edges[following]))))
    return []
