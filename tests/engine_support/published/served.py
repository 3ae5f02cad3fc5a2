"""The part of OpenAI's specification that is served: what is left without the fields that are refused.

Every request drawn from it has to be answered, which shows more than that each refusal has a reason.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Final

from engine_support.published.document import objects_of
from engine_support.published.reasons import table

_ITEMS: Final = frozenset(
    {"InputMessage", "OutputMessage", "FunctionToolCall", "FunctionCallOutputItemParam", "ReasoningItem",
     "CustomToolCall", "CustomToolCallOutput"}
)  # fmt: skip
"""Kinds of items that have a meaning for a model."""
_LEFT_OUT: Final = frozenset(
    {
        *("ChatCompletionRequestFunctionMessage", "ChatCompletionRequestMessageContentPartImage"),
        *("ChatCompletionRequestMessageContentPartAudio", "ChatCompletionRequestMessageContentPartFile"),
        *("ChatCompletionAllowedToolsChoice", "ChatCompletionNamedToolChoice", "ChatCompletionNamedToolChoiceCustom"),
        *("InputImageContent", "InputFileContent", "InputImageContentParamAutoParam", "InputFileContentParam"),
        *("CompactionTriggerItemParam", "ItemReferenceParam", "ToolChoiceAllowed", "ToolChoiceTypes"),
        *("ToolChoiceFunction", "ToolChoiceMCP", "ToolChoiceCustom", "SpecificApplyPatchParam"),
        "SpecificFunctionShellParam",
    }
)
"""Alternatives that are refused, or ask for a tool that a request does not happen to have."""
_FIELDS: Final = {
    "CreateChatCompletionRequest": ("/v1/chat/completions", ("top_logprobs", "stream_options")),
    "CreateCompletionRequest": ("/v1/completions", ("best_of", "suffix", "stream_options")),
    "CreateEmbeddingRequest": ("/v1/embeddings", ("dimensions",)),
    "CreateResponse": ("/v1/responses", ("previous_response_id", "stream_options")),
}
"""Schema of a body → its route, and the fields that need another, or a model that can do more."""


def served_only(document: dict[str, Any]) -> dict[str, Any]:
    """``document``, one of :func:`engine_support.published.document.requests_of`, without what is refused."""
    found = copy.deepcopy(document)
    schemas = found["components"]["schemas"]
    for schema in schemas.values():
        for form in objects_of(schema):
            for kind in ("oneOf", "anyOf"):
                if kind in form:
                    form[kind] = [each for each in form[kind] if _name(each) not in _LEFT_OUT]
    schemas["Item"]["oneOf"] = [each for each in schemas["Item"]["oneOf"] if _name(each) in _ITEMS]
    for name, (path, fields) in _FIELDS.items():
        _without(schemas, name, {*table(path), *fields})
    _filled(schemas)
    _tools(schemas)
    _streams(schemas)
    return found


def _without(schemas: dict[str, Any], name: str, fields: Iterable[str]) -> None:
    """Take the ``fields`` out of all objects that the schema ``name`` consists of."""
    waiting: list[Any] = [schemas[name]]
    while waiting:
        schema = waiting.pop()
        schema = schemas.get(_name(schema), schema)
        waiting += schema.get("allOf", ())
        for field in fields:
            schema.get("properties", {}).pop(field, None)


def _filled(schemas: dict[str, Any]) -> None:
    """Prompts that are not empty."""
    prompt = schemas["CreateCompletionRequest"]["properties"]["prompt"]["anyOf"][0]
    schemas["CreateCompletionRequest"]["properties"]["prompt"] = prompt
    for form in (*prompt["oneOf"], *schemas["CreateEmbeddingRequest"]["properties"]["input"]["oneOf"]):
        for text in (form, form.get("items", {})):
            if text.get("type") == "string":
                text["minLength"] = 1
        if form["type"] == "array":
            form["minItems"] = 1
    schemas["ReasoningItem"]["properties"]["summary"]["minItems"] = 1
    schemas["SummaryTextContent"]["properties"]["text"]["minLength"] = 1
    schemas["ChatCompletionRequestAssistantMessage"]["properties"]["function_call"] = False


def _streams(schemas: dict[str, Any]) -> None:
    """Every second request streams, and no output is long."""
    chat, response = (schemas[name]["allOf"][-1] for name in ("CreateChatCompletionRequest", "CreateResponse"))
    for body in (chat, response, schemas["CreateCompletionRequest"]):
        body["properties"]["stream"] = {"type": "boolean"}
        body["required"] = [*body["required"], "stream"]
    for body, length in ((chat, "max_completion_tokens"), (response, "max_output_tokens")):
        body["properties"][length] = body["properties"][length]["anyOf"][0]
        body["required"].append(length)


def _tools(schemas: dict[str, Any]) -> None:
    """One at most, so that no two have a name, and none that has to be called, as there may be none."""
    chat = schemas["CreateChatCompletionRequest"]["allOf"][-1]["properties"]
    for tools in (chat["tools"], schemas["ToolsArray"], schemas["NamespaceToolParam"]["properties"]["tools"]):
        tools["maxItems"] = 1
    schemas["ChatCompletionToolChoiceOption"] = schemas["ToolChoiceOptions"] = {"enum": ["none", "auto"]}
    for name in ("FunctionTool", "CustomToolParam", "FunctionToolParam"):
        schemas[name]["properties"]["defer_loading"] = False
    custom = schemas["CustomToolChatCompletions"]["properties"]["custom"]["properties"]["format"]["oneOf"][1]
    for syntax in (schemas["GrammarSyntax1"], custom["properties"]["grammar"]["properties"]["syntax"]):
        syntax["enum"] = ["lark"]  # any text may be its definition, which models are shown
    schemas["JsonProperty"]["anyOf"][0]["additionalProperties"] = False


def _name(schema: Any) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2] if isinstance(schema, dict) else ""
