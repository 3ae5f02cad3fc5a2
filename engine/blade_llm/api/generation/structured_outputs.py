"""The fields that constrain an output, and the one structure they request.

Four families mean the same: OpenAI's ``response_format``, BladeLLM's ``guided_*``, vLLM's ``structured_outputs`` and
SGLang's ``regex``, ``ebnf``, ``json_schema`` and ``structural_tag``. A request has at most one constraint, in as many
fields as it likes; two different ones are a 400, never a silent choice between them. ``json_object`` beside an object's
schema, as clients in their JSON mode are given one, says nothing that the schema does not.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol

import msgspec

from blade_llm.api.common.errors import ApiError, bad_request
from blade_llm.api.common.response_notes import note_left_out, note_unheld
from blade_llm.api.generation.ebnf import EbnfError, is_ebnf, lark_of_ebnf
from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.errors import BusyError, GrammarSpecError
from blade_llm.sampling.guided.text import with_closed_objects
from blade_llm.sampling.guided.validation import Validator

ANY_OBJECT = GrammarSpec("json", '{"type": "object"}')
"""The structure of ``json_object``."""
_LONG_SCHEMA: Final = 20_000
"""Characters from which reading one would hold up other requests' tokens."""
_WHITE_SPACE = 'JSON answers are written with ", " and ": " and no other white space; leave it out'


class JsonSchemaFormat(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    schema: dict[str, Any] | None = None
    """Any object when left out, as OpenAI's specification allows."""
    description: str | None = None
    strict: bool | None = None
    """Schemas are always kept to the letter; false changes nothing."""


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's form of a constraint."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = None
    """Of a structural tag."""
    structures: list[dict[str, Any]] | None = None
    """Of a structural tag in the older form, as ``triggers`` and ``at_least_one``."""
    triggers: list[str] | None = None
    at_least_one: bool | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's way. Whatever stands here is to change the answer, so what is not known is refused."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    disable_fallback: bool | None = None
    """There is one backend and no fallback."""
    disable_any_whitespace: bool | None = None
    """Accepted: there is never any."""
    disable_additional_properties: bool | None = None
    """True closes objects as is the default, also where the server opens them."""
    whitespace_pattern: str | None = None


class StructureFields(msgspec.Struct, frozen=True, kw_only=True):
    """Part of every request that generates text. At most one constraint."""

    response_format: ResponseFormat | None = None
    """Text, any JSON object, or one that follows a schema."""
    guided_json: dict[str, Any] | str | None = None
    """A JSON Schema, as an object or as its text."""
    guided_regex: str | None = None
    """The whole output matches."""
    guided_choice: list[str] | None = None
    """The output is one of these."""
    guided_grammar: str | None = None
    """A grammar in Lark's syntax, or in GBNF, whose rules are defined by ``::=``."""
    guided_decoding_backend: Literal["auto", "guidance", "llguidance"] | None = None
    """There is one, llguidance."""
    structured_outputs: StructuredOutputs | None = None
    """One of `json`, `regex`, `choice`, `grammar`, `structural_tag` and `json_object`."""
    regex: str | None = None
    """SGLang's name of `guided_regex`."""
    ebnf: str | None = None
    """SGLang's name of `guided_grammar`."""
    json_schema: dict[str, Any] | str | None = None
    """SGLang's name of `guided_json`."""
    structural_tag: dict[str, Any] | str | None = None
    """xgrammar's tags and what stands between them, in its newer or its older form."""


class StructureError(Exception):
    """A structure that cannot be expressed. The message says what to change."""


class TagWriter(Protocol):
    """Makes a grammar in Lark of a structural tag. Raises :class:`StructureError`."""

    def __call__(self, tag: dict[str, Any] | str, *, closed: bool = False) -> str:
        """``closed``: objects of its schemas take no keys that they do not list."""


_Tags = Callable[[dict[str, Any] | str], str]


def no_tags(tag: dict[str, Any] | str, *, closed: bool = False) -> str:
    raise StructureError("not available here; write a grammar")


def requested_structure(fields: StructureFields, tags: _Tags = no_tags) -> tuple[GrammarSpec, str] | None:
    """The structure that a request sets and its field; None for a free output.

    Raises :class:`ApiError` 400 for two that differ, and for options that are not available.
    """
    _check_options(fields)
    found = [
        *_response_format(fields.response_format, tags),
        *_json("guided_json", fields.guided_json),
        *_text("guided_regex", "regex", fields.guided_regex),
        *_choice("guided_choice", fields.guided_choice),
        *_grammar("guided_grammar", fields.guided_grammar),
        *_text("regex", "regex", fields.regex),
        *_grammar("ebnf", fields.ebnf),
        *_json("json_schema", fields.json_schema),
        *_tag("structural_tag", fields.structural_tag, tags),
    ]
    if (outputs := fields.structured_outputs) is not None:
        found += _json("structured_outputs.json", outputs.json)
        found += _text("structured_outputs.regex", "regex", outputs.regex)
        found += _choice("structured_outputs.choice", outputs.choice)
        found += _grammar("structured_outputs.grammar", outputs.grammar)
        found += _tag("structured_outputs.structural_tag", outputs.structural_tag, tags)
        if outputs.json_object:
            found.append((ANY_OBJECT, "structured_outputs.json_object"))
        if not found:
            raise bad_request("structured_outputs holds no constraint; add one or leave it out", "structured_outputs")
    found = _without_implied(found)
    for structure, second in found[1:]:
        if structure != found[0][0]:
            first = found[0][1]
            raise bad_request(f"{first} and {second} both constrain the answer; send one of them", _field(second))
    return found[0] if found else None


async def validated_structure(
    fields: StructureFields, validator: Validator, tags: TagWriter = no_tags
) -> tuple[GrammarSpec | None, str]:
    """:func:`requested_structure`, validated, and its field for errors that only the engine finds; None and "" without
    one. Raises :class:`ApiError` 400 that names the field and says what is wrong."""
    outputs = fields.structured_outputs
    closed = validator.closes_objects or (outputs is not None and outputs.disable_additional_properties is True)
    write = functools.partial(tags, closed=closed)
    if _is_slow(fields):
        requested = await asyncio.to_thread(requested_structure, fields, write)
    else:
        requested = requested_structure(fields, write)
    if requested is None:
        return None, ""
    structure, name = requested
    if closed:
        structure = with_closed_objects(structure)
    await check_structure(structure, validator, name)
    return structure, _field(name)


async def check_structure(structure: GrammarSpec, validator: Validator, name: str) -> None:
    """Raise :class:`ApiError` 400 when ``structure``, set by the field ``name``, cannot be followed.

    503 when all validators are busy.
    """
    try:
        note_unheld(await validator.validate(structure))
    except GrammarSpecError as error:
        raise bad_request(f"{name}: {error}", _field(name)) from None
    except BusyError as error:
        raise ApiError(
            503, str(error), kind="overloaded_error", param=_field(name), code="busy", headers={"retry-after": "1"}
        ) from None


class _Typed(msgspec.Struct):
    """What is read of a schema to tell whether it is an object's."""

    type: Any = None


def _without_implied(found: list[tuple[GrammarSpec, str]]) -> list[tuple[GrammarSpec, str]]:
    others = [each for each in found if each[0] != ANY_OBJECT]
    return others if any(_is_of_object(structure) for structure, _ in others) else found


def _is_of_object(structure: GrammarSpec) -> bool:
    if structure.kind != "json":
        return False
    try:
        return bool(msgspec.json.decode(structure.value, type=_Typed).type == "object")
    except (msgspec.DecodeError, RecursionError):
        return False


def _field(name: str) -> str:
    return name.partition(".")[0]


def _check_options(fields: StructureFields) -> None:
    outputs = fields.structured_outputs
    if outputs is not None and outputs.whitespace_pattern is not None:
        raise bad_request(f"structured_outputs.whitespace_pattern: {_WHITE_SPACE}", "structured_outputs", "unsupported")


def _is_slow(fields: StructureFields) -> bool:
    """Whether a structure has to be rewritten, or a long one read, before it is validated."""
    outputs, form = fields.structured_outputs, fields.response_format
    schemas = (fields.guided_json, fields.json_schema, None if outputs is None else outputs.json)
    return (
        any(isinstance(schema, str) and len(schema) > _LONG_SCHEMA for schema in schemas)
        or any(value is not None for value in (fields.guided_grammar, fields.ebnf, fields.structural_tag))
        or (outputs is not None and (outputs.grammar is not None or outputs.structural_tag is not None))
        or (form is not None and form.type == "structural_tag")
    )


def _response_format(requested: ResponseFormat | None, tags: _Tags) -> list[tuple[GrammarSpec, str]]:
    if requested is None or requested.type == "text":
        return []
    if requested.type == "json_object":
        return [(ANY_OBJECT, "response_format")]
    if requested.type == "structural_tag":
        given = {name: getattr(requested, name) for name in ("format", "structures", "triggers", "at_least_one")}
        return _tag("response_format", {name: value for name, value in given.items() if value is not None}, tags)
    if requested.json_schema is None:
        raise bad_request("response_format.json_schema is required with type json_schema", "response_format")
    if requested.json_schema.schema is None:
        note_left_out(["response_format.json_schema"])
        return [(ANY_OBJECT, "response_format")]
    return _json("response_format", requested.json_schema.schema)


def _json(name: str, schema: dict[str, Any] | str | None) -> list[tuple[GrammarSpec, str]]:
    if schema is None:
        return []
    if isinstance(schema, dict):
        return _text(name, "json", _encode(name, schema))
    try:  # as an object would be written, so that one schema is one
        read = msgspec.json.decode(schema)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _text(name, "json", schema)
    return _text(name, "json", _encode(name, read))


def _grammar(name: str, grammar: str | None) -> list[tuple[GrammarSpec, str]]:
    """In Lark or in EBNF, which is known by its rules: under SGLang's ``ebnf`` too, where guidance sends Lark."""
    found = _text(name, "grammar", grammar)
    if grammar is None or not is_ebnf(grammar):
        return found
    try:
        return [(GrammarSpec("grammar", lark_of_ebnf(grammar)), name)]
    except EbnfError as error:
        raise bad_request(f"{name}: {error}", _field(name)) from None


def _tag(name: str, tag: dict[str, Any] | str | None, tags: _Tags) -> list[tuple[GrammarSpec, str]]:
    if tag is None:
        return []
    try:
        return [(GrammarSpec("grammar", tags(tag)), name)]
    except StructureError as error:
        raise bad_request(f"{name}: {error}", _field(name)) from None


def _choice(name: str, choices: list[str] | None) -> list[tuple[GrammarSpec, str]]:
    if choices is None:
        return []
    if not choices or not all(choices):
        raise bad_request(f"{name} needs at least one string, and none of them empty", _field(name))
    return _text(name, "choice", _encode(name, choices))


def _text(
    name: str, kind: Literal["json", "regex", "choice", "grammar"], value: str | None
) -> list[tuple[GrammarSpec, str]]:
    if value is None:
        return []
    if not (value if kind == "regex" else value.strip()):  # an expression may be a space
        raise bad_request(f"{name} is empty; leave it out for a free answer", _field(name))
    return [(GrammarSpec(kind, value), name)]


def _encode(name: str, value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        raise bad_request(f"{name}: contains a lone surrogate, which is no character", _field(name)) from None
