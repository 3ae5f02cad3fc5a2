"""Whether what a server sends has the shape OpenAI publishes.

The ``openai`` package's types are generated from OpenAI's OpenAPI document, but the client fills them without looking:
a missing field or a number in place of text goes unnoticed. Here they are taken at their word: required fields must be
there, types match without conversion, ``null`` stands only where the type allows it, and what OpenAI does not know is
on a list of our extensions.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import pydantic

EXTENSIONS: Final[Mapping[str, frozenset[str]]] = {
    "Model": frozenset({"max_model_len", "root", "parent"}),
    "Response": frozenset({"store"}),
    "ResponseFunctionCallArgumentsDoneEvent": frozenset({"name"}),
    "ChatCompletion": frozenset({"prompt_logprobs"}),
    "ChatCompletionMessage": frozenset({"reasoning_content", "reasoning"}),
    "ChoiceDelta": frozenset({"reasoning_content", "reasoning"}),
    "chat_completion.Choice": frozenset({"stop_reason"}),
    "chat_completion_chunk.Choice": frozenset({"stop_reason"}),
    "CompletionChoice": frozenset({"stop_reason", "prompt_logprobs"}),
}
"""Type (with its module's name where several are called alike) → fields that are ours and documented."""

NULLABLE: Final[Mapping[str, frozenset[str]]] = {
    "ChatCompletionMessage": frozenset({"content", "refusal"}),
    "chat_completion.Choice": frozenset({"logprobs"}),
    "chat_completion_chunk.Choice": frozenset({"finish_reason"}),
    "ChoiceLogprobs": frozenset({"content", "refusal"}),
    "ChatCompletionTokenLogprob": frozenset({"bytes"}),
    "TopLogprob": frozenset({"bytes"}),
    "CompletionChoice": frozenset({"logprobs"}),
    "Response": frozenset({"error", "incomplete_details", "instructions", "metadata", "temperature", "top_p"}),
}
"""Fields that may be null and must be there: Python's types do not distinguish them from those that may be missing."""

NEVER_NULL: Final[Mapping[str, frozenset[str]]] = {
    "ChatCompletion": frozenset({"usage", "system_fingerprint"}),
    "ChatCompletionMessage": frozenset({"tool_calls", "annotations", "function_call"}),
    "ChoiceDelta": frozenset({"role", "tool_calls", "function_call"}),
    "ChoiceDeltaToolCall": frozenset({"id", "type", "function"}),
    "Completion": frozenset({"system_fingerprint"}),  # a stream's chunks are of this type too
    "CompletionUsage": frozenset({"prompt_tokens_details", "completion_tokens_details"}),
    "PromptTokensDetails": frozenset({"cached_tokens"}),
    "CompletionTokensDetails": frozenset(
        {"reasoning_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"}
    ),
}
"""Fields that may be missing and are not null, alike."""


def problems(value: Any, kind: Any, where: str = "$") -> list[str]:
    """What is wrong with ``value``, JSON as decoded, taken as a ``kind``; each begins with the place."""
    origin = get_origin(kind)
    if origin is Annotated:
        return problems(value, get_args(kind)[0], where)
    if origin is Union or origin is types.UnionType:
        return _of_union(value, get_args(kind), where)
    if origin is Literal:
        allowed = get_args(kind)
        fits = any(type(value) is type(choice) and value == choice for choice in allowed)
        return [] if fits else [f"{where}: {value!r} is none of {allowed}"]
    if origin is list:
        if not isinstance(value, list):
            return [f"{where}: {_name(value)} in place of a list"]
        (element,) = get_args(kind)
        return [found for i, entry in enumerate(value) for found in problems(entry, element, f"{where}[{i}]")]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{where}: {_name(value)} in place of an object"]
        return [found for k, entry in value.items() for found in problems(entry, get_args(kind)[1], f"{where}.{k}")]
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return _of_model(value, kind, where)
    return _of_scalar(value, kind, where)


def _of_model(value: Any, kind: type[pydantic.BaseModel], where: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{where}: {_name(value)} in place of {kind.__name__}"]
    fields = {field.alias or name: field for name, field in kind.model_fields.items()}
    required = {name for name, field in fields.items() if field.is_required()} | _listed(NULLABLE, kind)
    found = [f"{where}.{name} is missing" for name in sorted(required - value.keys())]
    ours = _listed(EXTENSIONS, kind)
    found += [f"{where}.{name} is no field of {kind.__name__}" for name in sorted(value.keys() - fields.keys() - ours)]
    found += [f"{where}.{name} is null" for name in sorted(_listed(NEVER_NULL, kind)) if value.get(name, ...) is None]
    for name in sorted(value.keys() & fields.keys()):
        found += problems(value[name], fields[name].annotation, f"{where}.{name}")
    return found


def _listed(table: Mapping[str, frozenset[str]], kind: type[pydantic.BaseModel]) -> frozenset[str]:
    with_module = f"{kind.__module__.rpartition('.')[2]}.{kind.__name__}"
    return table.get(kind.__name__, frozenset()) | table.get(with_module, frozenset())


def _of_union(value: Any, kinds: tuple[Any, ...], where: str) -> list[str]:
    """No problem with one of ``kinds``; else those with the one that is most likely meant."""
    candidates = [problems(value, kind, where) for kind in kinds]

    def unlikely(found: list[str]) -> tuple[bool, int]:
        # A wrong ``type`` says that another one is meant, however little else is wrong.
        return any(one.startswith((f"{where}.type:", f"{where}: ")) for one in found), len(found)

    return min(candidates, key=unlikely)


def _of_scalar(value: Any, kind: Any, where: str) -> list[str]:
    if kind in (Any, object):
        return []
    if kind is None or kind is type(None):
        return [] if value is None else [f"{where}: {_name(value)} in place of null"]
    fits = type(value) is kind or (kind is float and type(value) is int)  # JSON has numbers only
    return [] if fits else [f"{where}: {_name(value)} in place of {getattr(kind, '__name__', kind)}"]


def _name(value: Any) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r:.60}"
