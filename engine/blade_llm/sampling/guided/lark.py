"""Reads the text of a Lark grammar before llguidance compiles it.

llguidance accepts left recursion and rules that never end; the first costs more with every token, the second never lets
an output finish. Both are found here, by reading the rules (not the terminals, where llguidance refuses recursion
itself). Schemas written into a grammar (``%json {…}``) are found too: they obey the same rules as others.

This is no full parser: a grammar with constructs it does not know is left to llguidance alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from blade_llm.sampling.guided import limits
from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.lark_tokens import Token, read_tokens

_MOST_SHOWN: Final = 8
"""Rules of a cycle."""
_Expression = list[list["_Item"]]
"""Alternatives, each a sequence."""


@dataclass(frozen=True, slots=True)
class _Item:
    atom: str | _Expression | None
    """A rule's name, a group, or None for anything that matches text."""
    optional: bool


class _Unknown(Exception):
    """A construct this reader does not know."""


def with_json_options(text: str, prepare: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """``text`` with each of its schemas as ``prepare`` makes it, llguidance's options included."""
    parts, end = [], 0
    for token in read_tokens(text):
        if token.kind == "json" and isinstance(token.value, dict):
            parts += [text[end : token.start], "%json ", json.dumps(prepare(token.value))]
            end = token.start + len(token.text)
    return "".join([*parts, text[end:]])


def embedded_schemas(text: str) -> list[dict[str, Any]]:
    """The schemas written into a grammar, in order."""
    return [token.value for token in read_tokens(text) if token.kind == "json" and isinstance(token.value, dict)]


def check_recursion(text: str) -> None:
    """Raise :class:`GrammarSpecError` for left recursion and for a start rule that cannot end."""
    try:
        rules = _rules([token for token in read_tokens(text) if token.kind != "space"])
    except (_Unknown, IndexError, RecursionError):
        return
    nullable = _holding(rules, lambda item: item.optional)
    lefts: dict[str, set[str]] = {}
    for name, expression in rules.items():
        _add_first(expression, nullable, lefts.setdefault(name, set()))
    if cycle := _cycle(lefts):
        name = cycle[0]
        shown = [*cycle, name] if len(cycle) <= _MOST_SHOWN else [*cycle[:_MOST_SHOWN], "…", name]
        raise GrammarSpecError(
            f'left recursion: {" → ".join(shown)}; write repetition instead, for example {name}: item ("," item)*'
        )
    ending = _holding(rules, lambda item: item.optional or _leaves(item, rules))
    if "start" in rules and "start" not in ending:
        raise GrammarSpecError("rule start never ends: each of its alternatives leads back into itself")


def _rules(tokens: list[Token]) -> dict[str, _Expression]:
    """Rule → its alternatives."""
    rules: dict[str, _Expression] = {}
    tokens = [*tokens, Token("newline", "\n", 0), Token("end", "", 0)]
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
            if len(rules) > limits.MAX_RULES:
                raise GrammarSpecError(f"the grammar has more than {limits.MAX_RULES} rules and terminals, the limit")
        else:
            raise _Unknown
    return rules


def _definition(tokens: list[Token], position: int) -> int:
    """The start of the body of the rule that is defined at ``position``; 0 when none is."""
    if tokens[position].kind != "name":
        return 0
    position += 1
    if tokens[position].text == "[":
        while tokens[position].text != "]":
            position += 1
        position += 1
    return position + 1 if tokens[position].text == ":" else 0


def _alternatives(tokens: list[Token], position: int, closing: str = "") -> tuple[_Expression, int]:
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
    tokens: list[Token],
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


def _key(item: _Item) -> str | int | None:
    """The key of an item in :func:`_holding`: a rule by its name, a group by its identity."""
    return id(item.atom) if isinstance(item.atom, list) else item.atom


def _holding(rules: dict[str, _Expression], given: Callable[[_Item], bool]) -> set[str | int]:
    """Rules and groups with an alternative whose items all hold: because they are ``given``, or hold themselves.

    Each sequence counts the items it waits for, so every item is visited once or twice, however the rules depend on
    each other.
    """
    missing: list[int] = []
    owners: list[str | int] = []
    waiting: dict[str | int | None, list[int]] = {}
    """Rule or group → the sequences that wait for it, as often as they do."""
    found: list[str | int] = []
    stack: list[tuple[str | int, _Expression]] = list(rules.items())
    while stack:
        owner, expression = stack.pop()
        for sequence in expression:
            missing.append(0)
            owners.append(owner)
            for item in sequence:
                if isinstance(item.atom, list):
                    stack.append((id(item.atom), item.atom))
                if not given(item):
                    missing[-1] += 1
                    waiting.setdefault(_key(item), []).append(len(missing) - 1)
            if not missing[-1]:
                found.append(owner)
    holding: set[str | int] = set()
    while found:
        key = found.pop()
        if key in holding:
            continue
        holding.add(key)
        for index in waiting.get(key, ()):
            missing[index] -= 1
            if not missing[index]:
                found.append(owners[index])
    return holding


def _add_first(expression: _Expression, nullable: set[str | int], found: set[str]) -> None:
    """Add the rules that may stand at the very beginning to ``found``."""
    for sequence in expression:
        for item in sequence:
            if isinstance(item.atom, list):
                _add_first(item.atom, nullable, found)
            elif item.atom is not None:
                found.add(item.atom)
            if not (item.optional or _key(item) in nullable):
                break


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
