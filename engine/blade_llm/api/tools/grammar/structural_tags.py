"""Structural tags: xgrammar's way to say which tags an output holds and what stands between them.

The format is that of https://xgrammar.mlc.ai/docs/tutorials/structural_tag.html, and the older one of ``structures``
and ``triggers``; SGLang and vLLM take both. Tags of the vocabulary (``<tool_call>``) stand as their tokens.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, Final

import llguidance
import msgspec

from blade_llm.api.generation.ebnf import EbnfError, is_ebnf, lark_of_ebnf
from blade_llm.api.generation.structured_outputs import StructureError, TagWriter
from blade_llm.api.tools.grammar.arguments import ArgumentsError
from blade_llm.api.tools.grammar.rules import ANYTHING, Rules, either, escaped, json_value
from blade_llm.sampling.guided import limits
from blade_llm.sampling.guided.json_schema.objects import CLOSED
from blade_llm.sampling.guided.text import literal
from blade_llm.text.tokenizer import Tokenizer

_ASCII_CLASSES: Final = "dws"
_MOST_DEPTH: Final = 30
_MOST_ELEMENTS: Final = limits.MAX_RULES
"""Of a list: triggers are compared with tags."""
_MOST_WRITTEN: Final = 4 * limits.MAX_CHARACTERS["grammar"]
"""Characters: a format within others, or behind several triggers, is written more than once."""
_PER_FORMAT: Final = 100
"""What a format costs beside its text, in characters."""


def structural_tag_grammar(tag: dict[str, Any] | str, tokenizer: Tokenizer, *, closed: bool = False) -> str:
    """The grammar of outputs that follow ``tag``, in Lark; vLLM's clients send it as text.

    Args:
        closed: objects of its schemas take no keys that they do not list, unless a schema says otherwise.

    Raises :class:`StructureError`.
    """
    tag = _read(tag)
    try:
        if "structures" in tag:
            form: Any = _of_structures(tag)
        elif "format" in tag:
            form = tag["format"]
        else:
            raise StructureError("needs format, or structures and triggers")
        rules = Rules(tokenizer)
        return rules.text(_Writer(rules, tokenizer, closed=closed).write(form, (), "format", 0))
    except (EbnfError, ArgumentsError) as error:
        raise StructureError(str(error)) from None


def tag_writer(tokenizer: Tokenizer) -> TagWriter:
    """:func:`structural_tag_grammar` for one model."""
    return functools.partial(structural_tag_grammar, tokenizer=tokenizer)


def _of_structures(tag: dict[str, Any]) -> dict[str, Any]:
    """The older format in the words of the newer."""
    structures = tag["structures"]
    if not isinstance(structures, list) or not all(isinstance(each, dict) for each in structures):
        raise StructureError("structures must be a list of objects with begin, schema and end")
    tags = [
        {
            "type": "tag",
            "begin": each.get("begin"),
            "content": {"type": "json_schema", "json_schema": {} if each.get("schema") is None else each["schema"]},
            "end": each.get("end"),
        }
        for each in structures
    ]
    return {
        "type": "triggered_tags",
        "triggers": tag.get("triggers"),
        "tags": tags,
        "at_least_one": bool(tag.get("at_least_one")),
    }


class _Writer:
    """Each method returns an expression for a format and the end behind it, one of ``ends``; none: there is no end."""

    def __init__(self, rules: Rules, tokenizer: Tokenizer, *, closed: bool) -> None:
        self._rules = rules
        self._closed = closed
        self._written = 0
        self._tokens = re.compile(
            "|".join(map(re.escape, sorted(tokenizer.added_ids, key=len, reverse=True))) or "(?!)"
        )
        self._number = 0
        self._writers: dict[str, Callable[[dict[str, Any], tuple[str, ...], str, int], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "optional": self._repeated,
            "star": self._repeated,
            "plus": self._repeated,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def write(self, form: Any, ends: tuple[str, ...], place: str, depth: int) -> str:
        kind = form.get("type") if isinstance(form, dict) else None
        if depth > _MOST_DEPTH:
            raise StructureError(f"{place}: nested more than {_MOST_DEPTH} deep")
        if not isinstance(kind, str) or kind not in self._writers:
            raise StructureError(f"{place}: type must be one of {', '.join(self._writers)}, not {str(kind)[:40]!r}")
        self._spend(_PER_FORMAT)
        text = self._writers[kind](form, ends, place, depth + 1)
        self._spend(len(text))
        return text

    # What holds no others

    def _const_string(self, form: dict[str, Any], ends: tuple[str, ...], place: str, depth: int) -> str:
        return self._then(self._literal(_text(form, "value", place)), ends)

    def _json_schema(self, form: dict[str, Any], ends: tuple[str, ...], place: str, depth: int) -> str:
        if form.get("style", "json") != "json":
            raise StructureError(f"{place}.style: only json is supported")
        schema = form.get("json_schema")
        if not isinstance(schema, (dict, bool)):
            raise StructureError(f"{place}.json_schema must be a JSON Schema")
        if self._closed and isinstance(schema, dict):
            schema = {CLOSED: True, **schema}
        return self._then(json_value(schema), ends)

    def _regex(self, form: dict[str, Any], ends: tuple[str, ...], place: str, depth: int) -> str:
        expression = llguidance.regex_to_lark(_text(form, "pattern", place), _ASCII_CLASSES)
        # with its end one lexeme, as one may match the other
        return f"/({expression})({'|'.join(map(escaped, ends))})/" if ends else f"/{expression}/"

    def _grammar(self, form: dict[str, Any], ends: tuple[str, ...], place: str, depth: int) -> str:
        grammar = _text(form, "grammar", place)
        grammar = lark_of_ebnf(grammar) if is_ebnf(grammar) else grammar
        return self._then(f"%lark {{\n{grammar}\n}}", ends)

    def _any_text(self, form: dict[str, Any], ends: tuple[str, ...], place: str, depth: int) -> str:
        return self._free(ends, _texts(form, "excludes", place) if form.get("excludes") else ())

    # What does

    def _sequence(self, form: dict[str, Any], ends: tuple[str, ...], place: str, depth: int) -> str:
        elements = _list(form, "elements", place)
        last = len(elements) - 1
        found = []
        for number, element in enumerate(elements):
            if number < last and isinstance(element, dict) and element.get("type") in ("any_text", "triggered_tags"):
                raise StructureError(
                    f"{place}.elements[{number}]: nothing can follow any text; put it last, or in a tag"
                )
            found.append(self.write(element, ends if number == last else (), f"{place}.elements[{number}]", depth))
        return " ".join(found)

    def _or(self, form: dict[str, Any], ends: tuple[str, ...], place: str, depth: int) -> str:
        elements = enumerate(_list(form, "elements", place))
        return either([self.write(each, ends, f"{place}.elements[{number}]", depth) for number, each in elements])

    def _repeated(self, form: dict[str, Any], ends: tuple[str, ...], place: str, depth: int) -> str:
        times = {"optional": "?", "star": "*", "plus": "+"}[form["type"]]
        return self._then(f"({self.write(form.get('content'), (), f'{place}.content', depth)}){times}", ends)

    def _tag(self, form: dict[str, Any], ends: tuple[str, ...], place: str, depth: int) -> str:
        return f"{self._literal(_text(form, 'begin', place))} {self._rest_of_tag(form, ends, place, depth)}"

    def _rest_of_tag(self, form: dict[str, Any], ends: tuple[str, ...], place: str, depth: int) -> str:
        own = form.get("end")
        own_ends = (own,) if isinstance(own, str) else _texts(form, "end", place)
        inside = self.write(form.get("content"), tuple(filter(None, own_ends)), f"{place}.content", depth)
        return self._then(inside, ends)

    def _triggered_tags(self, form: dict[str, Any], ends: tuple[str, ...], place: str, depth: int) -> str:
        tags = _list(form, "tags", place)
        if not all(isinstance(tag, dict) for tag in tags):
            raise StructureError(f"{place}.tags must be objects")
        begins = [_text(tag, "begin", f"{place}.tags[{number}]") for number, tag in enumerate(tags)]
        behind: dict[str, list[str]] = {}
        """Trigger as text holds it → what follows it."""
        for trigger in _texts(form, "triggers", place):
            token = self._tokens.match(trigger)
            marker = token[0] if token else trigger
            for number, (tag, begin) in enumerate(zip(tags, begins, strict=True)):
                if begin.startswith(trigger):
                    rest = self._rest_of_tag(tag, (), f"{place}.tags[{number}]", depth)
                    behind.setdefault(marker, []).append(f"{self._literal(begin[len(marker) :])} {rest}")
        triggers = tuple(behind)
        if missing := [begin for begin in begins if not begin.startswith(triggers or "\0")]:
            raise StructureError(f"{place}: no trigger begins the tag {missing[0]!r}; add one")
        whole = [self._tag(tag, (), f"{place}.tags[{number}]", depth) for number, tag in enumerate(tags)]
        first = either([self._rules.rule(self._name("tag"), each) for each in whole])
        if form.get("at_least_one") and form.get("stop_after_first"):
            return self._then(first, ends)
        marked = either(
            [
                f"{self._rules.until(self._name('before'), trigger, *_others(triggers, trigger))} {either(rests)}"
                for trigger, rests in behind.items()
            ]
        )
        text = self._free(ends, triggers)
        if form.get("at_least_one"):
            return f"{first} ({marked})* {text}"
        return either([self._then(marked, ends), text]) if form.get("stop_after_first") else f"({marked})* {text}"

    def _tags_with_separator(self, form: dict[str, Any], ends: tuple[str, ...], place: str, depth: int) -> str:
        tags = enumerate(_list(form, "tags", place))
        tag = either([self.write(each, (), f"{place}.tags[{number}]", depth) for number, each in tags])
        tag = self._rules.rule(self._name("one"), tag)
        if not form.get("stop_after_first"):
            separator = _text(form, "separator", place) if form.get("separator") else ""
            tag = f"{tag} ({self._literal(separator)} {tag})*"
        return self._then(tag if form.get("at_least_one") else f"({tag})?", ends)

    # Pieces

    def _then(self, expression: str, ends: tuple[str, ...]) -> str:
        return f"{expression} {either([self._literal(end) for end in ends])}" if ends else expression

    def _free(self, ends: tuple[str, ...], excluded: tuple[str, ...]) -> str:
        """Any text without these, and the end where it comes first."""
        name = self._name("text")
        if not ends:
            return self._rules.free_text(name.upper(), *(ANYTHING + escaped(text) + ANYTHING for text in excluded))
        return either([self._rules.until(f"{name}_{number}", end, *excluded) for number, end in enumerate(ends)])

    def _literal(self, text: str) -> str:
        """``text`` with the tokens in it as these."""
        self._spend(len(text))
        found, position = [], 0
        for match in self._tokens.finditer(text):
            found += [literal(text[position : match.start()])] if match.start() > position else []
            found.append(self._rules.marker(match[0]))
            position = match.end()
        return " ".join([*found, *([literal(text[position:])] if position < len(text) or not found else [])])

    def _spend(self, characters: int) -> None:
        self._written += characters
        if self._written > _MOST_WRITTEN:
            raise StructureError("it is too large; send fewer or simpler tags, and fewer triggers")

    def _name(self, base: str) -> str:
        self._number += 1
        return f"{base}_{self._number}"


def _others(texts: tuple[str, ...], text: str) -> tuple[str, ...]:
    return tuple(other for other in texts if other != text)


def _text(form: dict[str, Any], name: str, place: str) -> str:
    value = form.get(name)
    if not isinstance(value, str):
        raise StructureError(f"{place}.{name} must be a string")
    return value


def _list(form: dict[str, Any], name: str, place: str) -> list[Any]:
    value = form.get(name)
    if not isinstance(value, list) or not value:
        raise StructureError(f"{place}.{name} must be a list with at least one element")
    if len(value) > _MOST_ELEMENTS:
        raise StructureError(f"{place}.{name} has {len(value)} elements; send at most {_MOST_ELEMENTS}")
    return value


def _texts(form: dict[str, Any], name: str, place: str) -> tuple[str, ...]:
    values = _list(form, name, place)
    if not all(isinstance(value, str) for value in values):
        raise StructureError(f"{place}.{name} must be a list of strings")
    return tuple(values)


def _read(value: dict[str, Any] | str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    try:
        found = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise StructureError(f"not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise StructureError("must be an object")
    return found
