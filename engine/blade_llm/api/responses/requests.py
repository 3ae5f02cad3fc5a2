"""Bodies of ``POST /v1/responses`` and ``/v1/responses/input_tokens``: the fields, and which are refused and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from blade_llm.api.chat_request import ChatRequest
from blade_llm.api.common.errors import bad_request
from blade_llm.api.common.fields import NEVER_MATTERS, NEVER_SUPPORTED, Refusal, of_other_routes, parse
from blade_llm.api.common.response_notes import note_left_out
from blade_llm.api.generation.requests import CompletionRequest, ReasoningEffort, SamplingFields

LOGPROBS: Final = "message.output_text.logprobs"
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
]
"""Reasoning comes as plain text, so that it need not be encrypted; images of the input are listed with their URLs
always; the others concern items that never occur."""


_Key = Annotated[str, msgspec.Meta(max_length=64)]
_Value = Annotated[str, msgspec.Meta(max_length=512)]


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    format: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "text"})
    """``text``, ``json_object``, or ``json_schema`` with ``name``, ``schema`` and ``strict``."""
    verbosity: Literal["low", "medium", "high"] | None = "medium"
    """Accepted without effect."""


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True):
    effort: ReasoningEffort | None = None
    """As ``reasoning_effort`` of a chat."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Accepted; the reasoning comes as it is, not summarised."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_obfuscation: bool = False
    """OpenAI's padding against traffic analysis; events are never padded here."""


class ResponsesRequest(SamplingFields, msgspec.Struct, frozen=True, kw_only=True):
    """``POST /v1/responses``"""

    input: str | list[Any]
    """A user's message, or items: messages, function calls, their outputs, reasoning. Messages of the user and outputs
    may hold images."""
    instructions: str | None = None
    """A system message before ``input``."""
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """All that fits when left out."""
    include: list[Include] = []
    """``message.output_text.logprobs`` shows log-probabilities; what else OpenAI knows is there anyway, or never occurs
    here."""
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    """Has effect with ``include: ["message.output_text.logprobs"]``."""
    text: TextOptions = TextOptions()
    """``format``: ``text``, ``json_object`` or ``json_schema``."""
    reasoning: ReasoningOptions | None = None
    """``effort`` as ``reasoning_effort`` of a chat; the reasoning is shown as it is, not summarised."""
    tools: list[dict[str, Any]] = []
    """Functions; nothing runs on the server."""
    tool_choice: str | dict[str, Any] = "auto"
    """``none``, ``auto``, ``required``, a function, or ``allowed_tools``."""
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    """Go on from a response that is kept (``--response_store_bytes``, ``--response_store_time``)."""
    store: bool | None = None
    """Keep the response for a while; true when left out."""
    truncation: Literal["auto", "disabled"] = "disabled"
    """``auto``: leave out the oldest messages where the prompt is too long."""
    max_tool_calls: int | None = None
    """Limits tools that run on the server, and there are none."""
    metadata: Annotated[dict[_Key, _Value], msgspec.Meta(max_length=16)] = {}
    user: str | None = None
    """Comes back in the response, as ``metadata`` does; nothing else is done with it."""
    safety_identifier: str | None = None
    """Comes back in the response, as ``metadata`` does; nothing else is done with it."""
    prompt_cache_key: str | None = None
    """Comes back in the response, as ``metadata`` does; nothing else is done with it."""
    chat_template: str | None = None
    """A chat template in place of the model's."""
    chat_template_kwargs: dict[str, Any] = {}
    """Further arguments for the chat template."""

    @property
    def with_logprobs(self) -> bool:
        return LOGPROBS in self.include


class InputTokensRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /v1/responses/input_tokens``"""

    model: str | None = None
    """One of the served names; the only model when left out."""
    input: str | list[Any]
    """As in a response's request, like all the others here."""
    instructions: str | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    """``none`` leaves the tools out."""
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: ReasoningOptions | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}


AS_IN_CHAT: Final = frozenset({*SamplingFields.__struct_fields__, "chat_template", "chat_template_kwargs"})
"""Fields that mean the same in a chat request."""


IGNORED: Final[Mapping[str, str]] = {
    **NEVER_MATTERS,
    "client_metadata": "for the client's own records",
    "request_id": "the id is made of the header x-request-id",
}
"""Fields that are accepted and do not change the output → why."""

IGNORED_BY_COUNT: Final[Mapping[str, str]] = {
    **IGNORED,
    "personality": "there is one",
    **{
        name: "changes nothing in the prompt"
        for name in ResponsesRequest.__struct_fields__
        if name not in InputTokensRequest.__struct_fields__
    },
    "truncation": "all is counted",
}
"""The same of counting: bodies of a response may be counted as they are."""

REFUSED: Final[Mapping[str, Refusal]] = {
    **of_other_routes(
        (CompletionRequest, ChatRequest), "/v1/chat/completions", ResponsesRequest.__struct_fields__, IGNORED
    ),
    **NEVER_SUPPORTED,
    "conversation": Refusal("there are no conversations; send previous_response_id, or the earlier items in 'input'"),
    "background": Refusal("nothing goes on without its client; use 'stream'", (False,)),
    "background_options": Refusal("nothing goes on without its client"),
    "prompt": Refusal("prompts are not stored; send 'instructions' and 'input'"),
    "context_management": Refusal("conversations are not compacted", ([],)),
    "moderation": Refusal("there is no moderation"),
    "image": Refusal("answers are text"),
    "prompt_cache_options": Refusal("the prompt cache finds equal beginnings by itself; see cache_salt"),
    "access_programs": Refusal("there are none"),
    "messages": Refusal("belongs to /v1/chat/completions; here it is input"),
    "reasoning_effort": Refusal("belongs to /v1/chat/completions; here it is reasoning.effort"),
    "max_tokens": Refusal("belongs to /v1/chat/completions; here it is max_output_tokens"),
    "max_completion_tokens": Refusal("belongs to /v1/chat/completions; here it is max_output_tokens"),
    "logprobs": Refusal(f'belongs to /v1/chat/completions; here it is include: ["{LOGPROBS}"]', (False,)),
    "n": Refusal("a response is one answer", (1,)),
    "previous_response": Refusal("send previous_response_id, or the earlier items in 'input'"),
    "previous_input_messages": Refusal("send the earlier items in 'input'", ([],)),
    "enable_response_messages": Refusal("prompts and outputs are not returned as messages of Harmony", (False,)),
}
"""Fields that are refused, but for values that request nothing → why."""


def parse_request(raw: dict[str, Any]) -> ResponsesRequest:
    """``raw`` as a request. Raises :class:`ApiError` 400 that names the field."""
    request = parse(raw, ResponsesRequest, ignored=IGNORED, refused=REFUSED)
    if request.top_logprobs is not None and not request.with_logprobs:
        note_left_out(["top_logprobs"])
    if request.response_format is not None and request.text.format.get("type") != "text":
        raise bad_request("text.format and response_format both constrain the answer; send one of them", "text")
    return request


def parse_count(raw: dict[str, Any]) -> tuple[dict[str, Any], ResponsesRequest]:
    """What of a request makes its prompt, raw and read. Raises :class:`ApiError` 400 that names the field."""
    counted = parse(raw, InputTokensRequest, ignored=IGNORED_BY_COUNT, refused=REFUSED)
    left = {name: value for name, value in raw.items() if name in InputTokensRequest.__struct_fields__}
    return left, ResponsesRequest(**msgspec.structs.asdict(counted))
