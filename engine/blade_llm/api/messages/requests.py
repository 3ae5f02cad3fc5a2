"""The bodies of ``POST /v1/messages`` and ``/v1/messages/count_tokens``: which fields exist, and which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common.errors import bad_request
from blade_llm.api.common.fields import NEVER_MATTERS, NEVER_SUPPORTED, Refusal, of_other_routes, parse
from blade_llm.api.generation.requests import MAX_TEXT, CompletionRequest, SamplingFields
from blade_protocol.anthropic import NO_THREADS

_MAX_SEQUENCES: Final = 16
Messages = Annotated[list[Any], msgspec.Meta(min_length=1)]
_Effort = Literal["low", "medium", "high", "xhigh", "max"]


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    """``disabled`` switches it off where the template can, and leaves it out of the response."""
    budget_tokens: int | None = None
    """Accepted without effect; ``max_tokens`` counts thinking too."""
    display: Literal["summarized", "omitted"] | None = None
    """``omitted``: blocks of thinking are empty. It is never summarised."""


class JsonFormat(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True):
    effort: _Effort | None = None
    """For templates that read it, with ``thinking``."""
    format: JsonFormat | None = None
    """A JSON schema that the text follows."""


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """With ``tool``: the one to call."""
    disable_parallel_tool_use: bool = False
    """One call at most."""


class CountTokensRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /v1/messages/count_tokens``"""

    model: str | None = None
    """One of the served names; the only model when left out."""
    messages: Messages
    """As in a message's request, like all the others here."""
    system: str | list[Any] | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: ToolChoice | None = None
    """``none`` leaves the tools out."""
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}


class MessagesRequest(SamplingFields, msgspec.Struct, frozen=True, kw_only=True):
    """``POST /v1/messages``"""

    messages: Messages
    """Texts or blocks: text, image, thinking, redacted_thinking, tool_use, tool_result."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    """Thinking included; more than the context has room for is cut to that."""
    system: str | list[Any] | None = None
    """A text, or text blocks."""
    stop_sequences: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]], msgspec.Meta(max_length=_MAX_SEQUENCES)
    ] = []
    """At most 16 of at most 1,024 characters."""
    tools: list[dict[str, Any]] = []
    """Tools of the client's own: ``name``, ``description``, ``input_schema``, ``strict``."""
    tool_choice: ToolChoice | None = None
    """``auto``, ``any``, ``tool`` or ``none``; ``disable_parallel_tool_use``."""
    thinking: Thinking | None = None
    """``enabled`` or ``adaptive`` shows what the model thinks; off when left out, as far as the template can."""
    output_config: OutputConfig | None = None
    """``format``: a JSON schema for the text; ``effort``: for templates that read it, with ``thinking``."""
    output_format: JsonFormat | None = None
    """The earlier name of ``output_config.format``."""
    chat_template: str | None = None
    """A chat template in place of the model's."""
    chat_template_kwargs: dict[str, Any] = {}
    """Further arguments for the chat template."""


PromptFields = MessagesRequest | CountTokensRequest
"""What makes the prompt is the same in both."""


def thinks(request: PromptFields) -> bool:
    """Whether thinking is part of the response."""
    return request.thinking is not None and request.thinking.type != "disabled"


def json_format(request: PromptFields) -> JsonFormat | None:
    """The schema of the text, under either name."""
    form = None if request.output_config is None else request.output_config.format
    return request.output_format if form is None else form


AS_IN_CHAT: Final = frozenset({*SamplingFields.__struct_fields__, "chat_template", "chat_template_kwargs"})
"""Fields that mean the same in a chat request."""

IGNORED: Final[Mapping[str, str]] = {
    **NEVER_MATTERS,
    "cache_control": "the prefix cache finds equal beginnings by itself",
    "context_management": "nothing is cleared from a conversation; templates drop the thinking of earlier turns",
    "speed": "there is one speed",
    "betas": "belongs to the header anthropic-beta, which is ignored too",
    "billing_policy": "nothing is billed",
    "user_profile_id": "nothing is kept about users",
    "workspace_id": "there are no workspaces",
    "metadata": "nothing is kept about users",
    "user": "nothing is kept about users",
    "safety_identifier": "nothing is kept about users",
    "prompt_cache_key": "the prefix cache finds equal beginnings by itself",
    "service_tier": "there is one tier; see priority",
    "inference_geo": "it is computed where the server is",
    "diagnostics": "no message is stored to compare with",
    "fallbacks": "there is one model",
    "fallback_credit_token": "nothing is billed",
    "request_id": "the id is made of the header x-request-id",
    "stream_options": "every stream has the usage",
}
"""Fields that are accepted and do not change the output → why."""
IGNORED_BY_COUNT: Final[Mapping[str, str]] = {
    **IGNORED,
    **{
        name: "changes nothing in the prompt"
        for name in MessagesRequest.__struct_fields__
        if name not in CountTokensRequest.__struct_fields__
    },
}
"""The same of counting: bodies of a message may be counted as they are."""

REFUSED: Final[Mapping[str, Refusal]] = {
    **of_other_routes(
        (CompletionRequest, ChatRequest), "/v1/chat/completions", MessagesRequest.__struct_fields__, IGNORED
    ),
    **{name: refusal for name, refusal in NEVER_SUPPORTED.items() if name != "thinking"},
    "previous_response_id": Refusal("belongs to /v1/responses; send the whole conversation"),
    "truncation": Refusal("belongs to /v1/responses; leave out messages", ("disabled",)),
    "container": Refusal("nothing runs on the server"),
    "mcp_servers": Refusal("the server connects to no other; offer the model tools of yours", ([],)),
    "compaction": Refusal("conversations are not compacted"),
    "thread": Refusal("nothing is stored; send the whole conversation"),
    "max_completion_tokens": Refusal("belongs to /v1/chat/completions; here it is max_tokens"),
    "reasoning_effort": Refusal("belongs to /v1/chat/completions; here it is output_config.effort"),
    "parallel_tool_calls": Refusal(
        "belongs to /v1/chat/completions; here it is tool_choice.disable_parallel_tool_use", (True,)
    ),
    "n": Refusal("a message is one answer", (1,)),
    "logprobs": Refusal("a message has no log-probabilities; use /v1/chat/completions", (False,)),
}
"""Fields that are refused, but for values that request nothing → why."""

_Request = TypeVar("_Request", MessagesRequest, CountTokensRequest)


def parse_request(raw: dict[str, Any], kind: type[_Request]) -> _Request:
    """``raw`` as a request. Raises :class:`ApiError` 400 that names the field."""
    if raw.get("thread") is not None:
        raise bad_request(f"'thread' is not taken: {REFUSED['thread'].reason}", "thread", NO_THREADS)
    ignored = IGNORED_BY_COUNT if kind is CountTokensRequest else IGNORED
    request = parse(raw, kind, ignored=ignored, refused=REFUSED)
    if isinstance(request, MessagesRequest):
        if request.stop_sequences and request.stop:
            raise bad_request("stop_sequences and stop are the same; send one of them", "stop_sequences")
        if json_format(request) is not None and request.response_format is not None:
            message = "output_config.format and response_format both constrain the answer; send one of them"
            raise bad_request(message, "output_config")
    return request
