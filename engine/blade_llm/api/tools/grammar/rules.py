"""The rules of one grammar as they are added, and the expressions that all forms of calls are made of."""

from __future__ import annotations

import json
from typing import Any, Final

from blade_llm.api.tools.grammar.arguments import ArgumentsError
from blade_llm.sampling.guided import limits
from blade_llm.sampling.guided.text import literal
from blade_llm.text.tokenizer import Tokenizer
from blade_llm.text.tool_parsers.argument_schemas import Steps, TooManySteps

ANYTHING: Final = r"(.|\n)*"
SPACE: Final = r"[ \t\r\n]*"
_MOST_STEPS: Final = 20_000
"""Of looking through schemas, for all arguments together: tens of milliseconds."""
_MADE: Final = 2
"""Rules that are made, and may be dropped again, for each that may stay."""
_CHARACTERS: Final = limits.MAX_CHARACTERS["grammar"]
_ADVICE: Final = "offer fewer functions, or fewer and simpler arguments"


class Rules:
    """Each method returns an expression, or the name of a rule, that stands for what it describes.

    What would be refused for its size is refused while it is made, by an :class:`ArgumentsError`: schemas are clients'
    and the event loop waits.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._rules: dict[str, str] = {}
        self._terminals: dict[tuple[str, str], str] = {}
        """Kind and body → name."""
        self._num_characters = 0
        self._rules_made = 0
        self._characters_made = 0
        self.steps = Steps(_MOST_STEPS)

    def text(self, start: str) -> str:
        """The grammar."""
        return "\n".join([f"start: {start}", *(f"{name}: {body}" for name, body in self._rules.items()), ""])

    def rule(self, name: str, expression: str) -> str:
        size = len(name) + len(expression) + len(": \n")
        self.check_room(size)
        if name in self._rules:
            self._drop(name)
        self._num_characters += size
        self._characters_made += size
        self._rules_made += 1
        # the rule that the grammar starts with is one, too
        if len(self._rules) + 2 > limits.MAX_RULES or self._rules_made > _MADE * limits.MAX_RULES:
            raise ArgumentsError(f"the calls need more than {limits.MAX_RULES} rules of a grammar; {_ADVICE}")
        self._rules[name] = expression
        return name

    def check_room(self, num_characters: int) -> None:
        """Raise :class:`ArgumentsError` where the grammar has no room for an expression of ``num_characters``."""
        made = self._characters_made + num_characters
        if self._num_characters + num_characters > _CHARACTERS or made > _MADE * _CHARACTERS:
            raise ArgumentsError(f"the calls need a grammar of more than {_CHARACTERS} characters; {_ADVICE}")

    def take_steps(self, num: int) -> None:
        """Count what was looked at in schemas. Raises :class:`ArgumentsError` when it is too much."""
        try:
            self.steps.take(num)
        except TooManySteps:
            raise ArgumentsError(f"the schemas refer to others too often; {_ADVICE}") from None

    def reserve(self, name: str) -> bool:
        """Whether ``name`` is new; it is taken now, for a rule that follows."""
        if name in self._rules:
            return False
        self.rule(name, "")
        return True

    def saved(self) -> int:
        """The number of rules so far, for :meth:`restore`."""
        return len(self._rules)

    def restore(self, saved: int) -> None:
        """Drop the rules that were added since."""
        while len(self._rules) > saved:
            self._drop(next(reversed(self._rules)))

    def _drop(self, name: str) -> None:
        body = self._rules.pop(name)
        self._num_characters -= len(name) + len(body) + len(": \n")
        key = (name.partition("[")[2], body)
        if self._terminals.get(key) == name:
            del self._terminals[key]

    def terminal(self, name: str, *required: str, excluded: tuple[str, ...] = ()) -> str:
        """Text that all regular expressions ``required`` match and none of ``excluded``; the same has one name."""
        parts = [*(f"/{expression}/" for expression in required), *(f"~/{expression}/" for expression in excluded)]
        body = " & ".join(parts)
        kind = name.partition("[")[2]
        if (kind, body) not in self._terminals:
            self._terminals[kind, body] = self.rule(name, body)
        return self._terminals[kind, body]

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
    return text.translate(_ESCAPES)


def _escaped_character(character: str) -> str:
    if character == "\n":
        return r"\n"
    if character < " " or character == "\x7f":
        return rf"\x{{{ord(character):x}}}"
    plain = not character.isascii() or character.isalnum() or character in "<>_ \"'"
    return character if plain else "\\" + character


_ESCAPES: Final = {code: _escaped_character(chr(code)) for code in range(128)}


def either(expressions: list[str]) -> str:
    """One of them."""
    return expressions[0] if len(expressions) == 1 else f"({' | '.join(expressions)})"
