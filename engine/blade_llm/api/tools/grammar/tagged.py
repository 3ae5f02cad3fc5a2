"""Arguments between tags: strings stand there as they are, without quotes, all else as JSON.

An argument that may be a string or something else than null is written as JSON, strings in quotes: else nobody could
tell 5 from "5".
"""

from __future__ import annotations

from typing import Any, Final

from blade_llm.api.tools.grammar.arguments import Argument, Arguments, ArgumentsError, embedded, read_arguments
from blade_llm.api.tools.grammar.rules import ANYTHING, SPACE, Rules, either, escaped, json_value
from blade_llm.api.tools.grammar.strings import string_texts
from blade_llm.sampling.guided.text import literal
from blade_llm.text.tool_parsers.argument_schemas import Steps, kinds
from blade_llm.text.tool_parsers.tagged import LONGEST_KEY, NULLS

_KEY_END: Final = "</arg_key>"
_VALUE_END: Final = "</arg_value>"
_PARAMETER_END: Final = "</parameter>"
_OTHER_KEY: Final = r"[A-Za-z_][A-Za-z0-9_.-]{0,63}"
"""Keys of arguments that the schema does not list."""
_TEXT: Final = frozenset({"string"})
_TEXT_OR_NULL: Final = frozenset({"string", "null"})
_PLAIN: Final = frozenset({"description", "title", "default", "examples"})


def parameter_arguments(rules: Rules, index: int, schema: dict[str, Any]) -> str:
    """``<parameter=KEY>`` and the value on a line of its own, for each argument of function ``index``.

    Raises :class:`ArgumentsError`.
    """
    return _Writer(rules, index, read_arguments(schema), lines=True).arguments()


def pair_arguments(rules: Rules, index: int, schema: dict[str, Any]) -> str:
    """``<arg_key>KEY</arg_key>`` and ``<arg_value>VALUE</arg_value>``. Raises :class:`ArgumentsError`."""
    return _Writer(rules, index, read_arguments(schema), lines=False).arguments()


class _Writer:
    """One function's arguments.

    Args:
        lines: the form of Qwen3-Coder, else GLM's.
    """

    def __init__(self, rules: Rules, index: int, arguments: Arguments, *, lines: bool) -> None:
        self._rules = rules
        self._arguments = arguments
        self._lines = lines
        self._value_end = _PARAMETER_END if lines else _VALUE_END
        self._key_end = ">" if lines else _KEY_END
        self._name = f"argument_{index}"

    def arguments(self) -> str:
        found, size = [], 0
        for number, argument in enumerate(self._arguments.listed):
            self._check_key(argument)
            name = f"{self._name}_{number}"
            body = self._pair(literal(argument.key), self._value(name, argument.schema, argument.place))
            found.append(body if argument.required else f"({body})?")
            size += len(body)
            self._rules.check_room(size)
        if self._arguments.others is not False:
            name = f"{self._name}_other"
            listed = "|".join(escaped(argument.key) for argument in self._arguments.listed)
            excluded = (f"({listed})",) if listed else ()
            key = self._rules.terminal(f"{name.upper()}_KEY", _OTHER_KEY, excluded=excluded)
            others = self._arguments.others
            if others is True or others == {}:
                value = self._text(f"{name.upper()}_TEXT", (ANYTHING,))
            else:
                value = self._value(name, others, "#/additionalProperties")
            found.append(f"({self._pair(key, value)})*")
        return " ".join(found)

    def _check_key(self, argument: Argument) -> None:
        key = argument.key
        if not 0 < len(key) <= LONGEST_KEY or self._key_end in key or "\n" in key:
            raise ArgumentsError(f"{argument.place}: this name cannot be written in a call of this model; rename it")

    def _pair(self, key: str, value: str) -> str:
        marker = self._rules.marker
        if self._lines:
            return f'"<parameter=" {key} ">\\n" {value}'
        return f'{marker("<arg_key>")} {key} {marker(_KEY_END)} "\\n"? {marker("<arg_value>")} {value} "\\n"?'

    def _value(self, name: str, schema: Any, place: str) -> str:
        """A value and the end of its tag."""
        end = self._end()
        if schema is True or (isinstance(schema, dict) and _PLAIN.issuperset(schema)):
            # what begins like a JSON string, object or list is one: the reader finds its end
            text = self._text(f"{name.upper()}_TEXT", (rf'({SPACE}[^"\[{{ \t\r\n]{ANYTHING}|{SPACE})',))
            return f"({text} | {json_value({'type': ['string', 'object', 'array']})} {end})"
        steps = Steps()
        found = kinds(schema, self._arguments.root, steps)
        self._rules.take_steps(steps.taken)
        if found not in (_TEXT, _TEXT_OR_NULL):
            return f"{json_value(embedded(schema, self._arguments.root, place))} {end}"
        texts, null = string_texts(schema, self._arguments.root, place, self._rules.steps)
        written = [
            self._text(f"{name.upper()}_TEXT_{number}", required or (ANYTHING,), found == _TEXT_OR_NULL)
            for number, required in enumerate(texts)
        ]
        if null:
            written.append(f"{literal(NULLS[0])} {end}")
        if not written:
            raise ArgumentsError(f"{place}: no value can satisfy it")
        return either(written)

    def _end(self) -> str:
        return literal(f"\n{_PARAMETER_END}\n") if self._lines else self._rules.marker(_VALUE_END)

    def _text(self, name: str, required: tuple[str, ...], no_null: bool = False) -> str:
        """Text that matches all of ``required``, as it stands, and the end of its tag.

        The end is part of the text's lexeme where it is no token: a lexer that has read half of it does not go back.
        """
        tag = escaped(self._value_end)
        nulls = rf"{SPACE}({'|'.join(NULLS)}){SPACE}"
        if not self._lines and self._rules.is_token(self._value_end):
            excluded = [ANYTHING + tag + ANYTHING, *([nulls] if no_null else [])]
            return f"{self._rules.terminal(name, *required, excluded=tuple(excluded))} {self._end()}"
        end = rf"\n{tag}\n" if self._lines else tag
        further = r"(.|\n){2,}" if self._lines else r"(.|\n)+"
        excluded = [ANYTHING + tag + further, *([nulls + end] if no_null else [])]
        return self._rules.ending(name.lower(), *(f"({text}){end}" for text in required), excluded=tuple(excluded))
