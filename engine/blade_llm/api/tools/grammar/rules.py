"""The rules of one grammar as they are added, and the expressions that all forms of calls are made of."""

from __future__ import annotations

import json
from typing import Any, Final

from blade_llm.sampling.guided.text import literal
from blade_llm.text.tokenizer import Tokenizer

ANYTHING: Final = r"(.|\n)*"
SPACE: Final = r"[ \t\r\n]*"


class Rules:
    """Each method returns an expression, or the name of a rule, that stands for what it describes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rules: dict[str, str] = {}

    def text(self, start: str) -> str:
        """The grammar."""
        return "\n".join([f"start: {start}", *(f"{name}: {body}" for name, body in self._rules.items()), ""])

    def rule(self, name: str, expression: str) -> str:
        self._rules[name] = expression
        return name

    def reserve(self, name: str) -> bool:
        """Whether ``name`` is new; it is taken now, for a rule that follows."""
        if name in self._rules:
            return False
        self._rules[name] = ""
        return True

    def saved(self) -> dict[str, str]:
        """The rules so far, for :meth:`restore`."""
        return dict(self._rules)

    def restore(self, saved: dict[str, str]) -> None:
        self._rules = saved

    def terminal(self, name: str, *required: str, excluded: tuple[str, ...] = ()) -> str:
        """Text that all regular expressions ``required`` match and none of ``excluded``; the same has one name."""
        parts = [*(f"/{expression}/" for expression in required), *(f"~/{expression}/" for expression in excluded)]
        body = " & ".join(parts)
        kind = name.partition("[")[2]
        known = (other for other, found in self._rules.items() if found == body and other.partition("[")[2] == kind)
        return next(known, None) or self.rule(name, body)

    def ending(self, name: str, *required: str, excluded: tuple[str, ...] = ()) -> str:
        """:meth:`terminal` for text that ends where it matches first.

        Not only shorter: llguidance fails where a lexeme that could go on is followed by a token that is no text.
        """
        return self.terminal(f"{name}[lazy]", *required, excluded=excluded).removesuffix("[lazy]")

    def free_text(self, name: str, *excluded: str) -> str:
        """Any text but what ``excluded`` match."""
        return self.terminal(name, ANYTHING, excluded=excluded)

    def until(self, name: str, marker: str, *excluded: str) -> str:
        """Any text without the markers ``excluded``, and the ``marker`` where it comes first."""
        holding = tuple(ANYTHING + escaped(each) + ANYTHING for each in excluded)
        if not self.is_token(marker):
            return self.ending(name, ANYTHING + escaped(marker), excluded=holding)
        text = self.free_text(f"{name.upper()}_TEXT", ANYTHING + escaped(marker) + ANYTHING, *holding)
        return self.rule(name, f"{text} {self.marker(marker)}")

    def is_token(self, marker: str) -> bool:
        return marker in self._tokenizer.added_ids

    def marker(self, text: str) -> str:
        token_id = self._tokenizer.added_ids.get(text)
        return literal(text) if token_id is None else f"<[{token_id}]>"


def json_value(schema: Any) -> str:
    """A value that follows ``schema``. Which draft that is written in is for the validation, not for llguidance."""
    read = {key: value for key, value in schema.items() if key != "$schema"} if isinstance(schema, dict) else {}
    return f"%json {json.dumps(read, ensure_ascii=False)}"


def escaped(text: str) -> str:
    """``text`` as part of a regular expression between slashes."""
    return "".join(map(_escaped_character, text))


def _escaped_character(character: str) -> str:
    if character == "\n":
        return r"\n"
    if character < " " or character == "\x7f":
        return rf"\x{{{ord(character):x}}}"
    plain = not character.isascii() or character.isalnum() or character in "<>_ \"'"
    return character if plain else "\\" + character


def either(expressions: list[str]) -> str:
    """One of them."""
    return expressions[0] if len(expressions) == 1 else f"({' | '.join(expressions)})"
