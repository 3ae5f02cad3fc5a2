"""The body of ``POST /v1/responses``: which fields exist, and which are refused with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from blade_llm.api.errors import bad_request
from blade_llm.api.fields import parse

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
"""Reasoning comes as plain text, so that it need not be encrypted; the others concern items that never occur."""


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "text"})
    """``text``, ``json_object``, or ``json_schema`` with ``name``, ``schema`` and ``strict``."""
    verbosity: Literal["low", "medium", "high"] = "medium"
    """Accepted; there is nothing to tell the model."""


class ReasoningOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    """As ``reasoning_effort`` of a chat."""
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Accepted; the reasoning comes as it is, not summarised."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: bool = False
    """OpenAI's padding against traffic analysis; events are never padded here."""


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /v1/responses``"""

    input: str | list[Any]
    """A user's message, or items: messages, function calls, their outputs, reasoning."""
    model: str | None = None
    instructions: str | None = None
    """A system message before ``input``."""
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: int | None = None
    """All that fits when left out."""
    temperature: float | None = None
    top_p: float | None = None
    include: list[Include] = []
    top_logprobs: int | None = None
    """Needs ``include: ["message.output_text.logprobs"]``."""
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions | None = None
    tools: list[dict[str, Any]] = []
    """Functions; nothing runs on the server."""
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    """Limits tools that run on the server, and there are none."""
    metadata: dict[str, str] = {}
    store: bool = True
    """Accepted; nothing is stored."""
    service_tier: str | None = None
    """Accepted; there is one."""
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    # Beyond OpenAI's, as in a chat.
    top_k: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: str | list[str] = []
    stop_token_ids: list[int] = []
    min_tokens: int = 0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: str = ""
    chat_template_kwargs: dict[str, Any] = {}

    @property
    def with_logprobs(self) -> bool:
        return LOGPROBS in self.include


AS_IN_CHAT: Final = frozenset(
    {
        "model", "stream", "temperature", "top_p", "top_k", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos",
        "include_stop_str_in_output", "skip_special_tokens", "priority", "cache_salt", "chat_template_kwargs",
    }
)  # fmt: skip
"""Fields that mean the same in a chat request."""

_NOT_STORED: Final = "responses are not stored"
_REFUSED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "previous_response_id": ((), f"{_NOT_STORED}; send the earlier items in 'input'"),
    "conversation": ((), f"{_NOT_STORED}; send the earlier items in 'input'"),
    "background": ((False,), f"{_NOT_STORED}, so none can be fetched later; leave it out, or use 'stream'"),
    "background_options": ((), f"{_NOT_STORED}, so none can be fetched later; leave it out"),
    "prompt": ((), "prompts are not stored; send 'instructions' and 'input'"),
    "truncation": (("disabled",), "nothing is dropped from a conversation that is too long; leave it out"),
    "context_management": (([],), "conversations are not compacted; leave it out"),
    "moderation": ((), "there is no moderation; leave it out"),
    "image": ((), "this model makes no images; leave it out"),
    "prompt_cache_options": ((), "prompts are cached by their tokens alone; leave it out, or use 'cache_salt'"),
    "access_programs": ((), "there are none; leave it out"),
}
"""Field → values that ask for nothing (as ``null`` does), and what to say of others."""


def parse_request(raw: dict[str, Any]) -> ResponsesRequest:
    """``raw`` as a request. Raises :class:`ApiError` 400 that names the field."""
    for name, (off, reason) in _REFUSED.items():
        value = raw.get(name)
        if value is not None and value not in off:
            raise bad_request(f"{name!r} is not supported: {reason}", name, "unsupported")
    request = parse({name: value for name, value in raw.items() if name not in _REFUSED}, ResponsesRequest)
    if request.top_logprobs is not None and not request.with_logprobs:
        raise bad_request(f'top_logprobs needs include: ["{LOGPROBS}"]', "top_logprobs")
    if len(request.metadata) > 16 or any(len(k) > 64 or len(v) > 512 for k, v in request.metadata.items()):
        raise bad_request("metadata takes at most 16 pairs, keys of 64 and values of 512 characters", "metadata")
    return request
