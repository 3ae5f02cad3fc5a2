"""Arguments as Python writes them: ``city="Oslo", days=[1, 2], exact=True``.

A value without booleans and null is the same in JSON and in Python. Schemas that this cannot take apart are followed
in JSON, which the reader takes, too.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from blade_llm.api.tools.grammar.arguments import ArgumentsError, embedded, read_arguments
from blade_llm.api.tools.grammar.rules import Rules, either, escaped, json_value
from blade_llm.sampling.guided.json_schema.objects import CLOSED
from blade_llm.sampling.guided.schema import ANNOTATIONS
from blade_llm.sampling.guided.text import literal
from blade_llm.text.tool_parsers.argument_schemas import resolved

_KEY: Final = re.compile(r"\w{1,256}")
_OTHER_KEY: Final = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
_LEAVES: Final = ("string", "number", "integer")
_WORDS: Final = {"boolean": '("True" | "False")', "null": '"None"'}
_SHORT: Final = 40
"""Characters of an expression that may be written more than once; a longer one is a rule."""
_APPLIED: Final = {"anyOf", "oneOf", "allOf", "$ref", "enum", "const"}
_BESIDE: Final = ANNOTATIONS | {"$defs", "definitions", "$schema"}


class _InJson(Exception):
    """A schema that is followed in JSON only."""


def python_arguments(rules: Rules, index: int, schema: dict[str, Any]) -> str:
    """The arguments of function ``index``. Raises :class:`ArgumentsError`."""
    arguments = read_arguments(schema)
    values = _Values(rules, index, arguments.root)
    pairs = []
    for number, argument in enumerate(arguments.listed):
        if not _KEY.fullmatch(argument.key):
            raise ArgumentsError(f"{argument.place}: no Python identifier, as calls of this model need; rename it")
        value = values.argument(argument.schema, argument.place)
        pairs.append((rules.rule(f"argument_{index}_{number}", f'"{argument.key}=" {value}'), argument.required))
    other = ""
    if arguments.others is not False:
        listed = "|".join(escaped(argument.key) for argument in arguments.listed)
        key = rules.terminal(f"KEY_{index}", _OTHER_KEY, excluded=(f"({listed})",) if listed else ())
        value = values.argument(arguments.others, "#/additionalProperties")
        other = rules.rule(f"argument_{index}_other", f'{key} "=" {value}')
    return _joined(rules, f"arguments_{index}", pairs, other)


def _joined(rules: Rules, name: str, pairs: list[tuple[str, bool]], other: str = "") -> str:
    """The ``pairs`` (expression, required) in order with commas between, and then any number of ``other``."""
    tail = rules.rule(f"{name}_tail", f'(", " {other})*') if other else ""
    first = f"({other} {tail})?" if other else ""
    rest = tail
    first_required = next((number for number, (_, required) in enumerate(pairs) if required), len(pairs))
    for number in range(len(pairs) - 1, -1, -1):
        pair, required = pairs[number]
        if number <= first_required:  # else it cannot stand first
            begin = f"{pair} {rest}"
            if required:
                first = begin
            elif first:
                first = f"({begin} | {first})"
            else:
                first = f"({begin})?"
            first = rules.rule(f"{name}_from_{number}", first)
        rest = f'(", " {pair}){"" if required else "?"} {rest}'
        if 0 < number <= first_required + 1:  # else it is used once
            rest = rules.rule(f"{name}_after_{number}", rest)
    return first


class _Values:
    def __init__(self, rules: Rules, index: int, root: dict[str, Any]) -> None:
        self._rules = rules
        self._root = root
        self._index = index
        self._num_objects = 0
        self._num_parts = 0
        self._referred: dict[str, str] = {}
        """Reference → its rule."""

    def argument(self, schema: Any, place: str) -> str:
        """One value. Raises :class:`ArgumentsError`."""
        rules, num_referred = self._rules.saved(), len(self._referred)
        try:
            return self._value(schema)
        except _InJson:
            self._rules.restore(rules)
            while len(self._referred) > num_referred:
                self._referred.popitem()
            return json_value(embedded(schema, self._root, place))

    def _value(self, schema: Any) -> str:
        if schema is True or (isinstance(schema, dict) and schema.keys() <= _BESIDE):
            return self._anything()
        if not isinstance(schema, dict):
            raise _InJson
        said = {key: value for key, value in schema.items() if key not in _BESIDE}
        match said:
            case {"$ref": reference, **rest} if not rest:
                return self._reference(reference)
            case {"anyOf": cases, **rest} | {"oneOf": cases, **rest} if not rest:
                return either([self._value(case) for case in cases])
            case {"const": value, **rest} if rest.keys() <= {"type"}:
                return _one_of([value], rest)
            case {"enum": values, **rest} if rest.keys() <= {"type"}:
                return _one_of(values, rest)
            case {"type": list(names), **rest}:
                return either([self._value({"type": name, **rest}) for name in dict.fromkeys(names)])
            case {"type": "array", **rest} if rest.keys() <= {"items", "minItems", "maxItems"}:
                return self._array(rest)
            case {"type": "object", **rest} if rest.keys() <= {"properties", "required", "additionalProperties"}:
                return self._object(rest)
            case {"type": str(name)} if name in _WORDS:
                if said.keys() & _APPLIED:
                    raise _InJson
                return _WORDS[name]
            case {"type": str(name)} if name in _LEAVES and not said.keys() & _APPLIED:
                return json_value(said)
        raise _InJson

    def _reference(self, reference: str) -> str:
        if reference not in self._referred:
            target = resolved(self._root, reference)
            if target is None:
                raise _InJson
            name = self._referred[reference] = f"referred_{self._index}_{len(self._referred)}"
            self._rules.rule(name, self._value(target))
        return self._referred[reference]

    def _array(self, said: dict[str, Any]) -> str:
        least, most = said.get("minItems", 0), said.get("maxItems")
        if most == 0:
            return '"[]"'
        if most is not None and least > most:
            raise _InJson
        item = self._part(self._value(said.get("items", True)))
        more = f'(", " {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        return f'("[" {item} {more} "]"{"" if least else " | " + chr(34) + "[]" + chr(34)})'

    def _part(self, expression: str) -> str:
        """``expression`` to be written several times: parts in parts would double with each level."""
        if len(expression) <= _SHORT:
            return expression
        self._num_parts += 1
        return self._rules.rule(f"part_{self._index}_{self._num_parts}", expression)

    def _object(self, said: dict[str, Any]) -> str:
        properties = said.get("properties", {})
        closed = self._root.get(CLOSED) is True and "properties" in said
        others = said.get("additionalProperties", not closed)
        name = f"object_{self._index}_{self._num_objects}"
        self._num_objects += 1
        required = frozenset(said.get("required", ()))
        if others is not False and (properties or required):
            raise _InJson  # keys that are not listed have to be told from those that are
        if not required <= properties.keys():
            raise _InJson
        if others is False:
            pairs = [
                (f"{literal(json.dumps(key, ensure_ascii=False) + ': ')} {self._value(found)}", key in required)
                for key, found in properties.items()
            ]
            return f'"{{" {_joined(self._rules, name, pairs)} "}}"'
        pair = self._rules.rule(name, f'%json {{"type": "string"}} ": " {self._value(others)}')
        return f'("{{}}" | "{{" {pair} (", " {pair})* "}}")'

    def _anything(self) -> str:
        if self._rules.reserve("anything"):
            items = '"[" anything (", " anything)* "]" | "[]"'
            pair = '%json {"type": "string"} ": " anything'
            pairs = f'"{{" {pair} (", " {pair})* "}}" | "{{}}"'
            words = " | ".join(_WORDS.values())
            self._rules.rule("anything", f'%json {{"type": ["string", "number"]}} | {words} | {items} | {pairs}')
        return "anything"


def _one_of(values: list[Any], said: dict[str, Any]) -> str:
    """Those of the ``values`` that have the type that is ``said``, if any is."""
    names = said.get("type")
    if names is not None:
        fitting = frozenset(names if isinstance(names, list) else [names])
        values = [value for value in values if fitting & _types(value)]
    if not values:
        raise _InJson
    return either([_literal(value) for value in values])


def _types(value: Any) -> set[str]:
    """The names of the types that ``value`` has."""
    match value:
        case None:
            return {"null"}
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"integer", "number"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case list():
            return {"array"}
    return {"object"}


def _literal(value: Any) -> str:
    """A value as Python writes it, with strings as in JSON."""
    return literal(_python(value))


def _python(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_python(key)}: {_python(item)}' for key, item in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
