"""Which request fields exist, and what happens to the others.

A field that changes the output must never be ignored in silence: what this server does not do is refused by name,
unless its value requests nothing (``audio: null``). Bookkeeping fields that OpenAI clients send are ignored. What
nobody knows is ignored and listed in a header, or refused: :mod:`~blade_llm.api.common.unknown_fields`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from blade_llm.api.common.errors import LONGEST_ECHO, bad_request, shortened
from blade_llm.api.common.nested_fields import check_nested
from blade_llm.api.common.response_notes import note_unknown
from blade_llm.api.common.unknown_fields import MAX_FIELDS

_OF_IMAGES: Final = "images have min_pixels and max_pixels beside their URL"
_OF_MEDIA: Final = "how media are read is up to the server"
_RENDERED: Final = "for vLLM's render endpoints, as there"
_OTHER_ENGINES: Final = "between a router and engines of SGLang's"
NEVER_MATTERS: Final[Mapping[str, str]] = {
    "store": "nothing is stored",
    "prediction": "a hint for speed: the engine's own speculation needs no text from clients",
    "service_tier": "there is one tier; see priority",
    "prompt_cache_retention": "blocks stay until others need the room",
    "spaces_between_special_tokens": "changes nothing with the tokenizers library",
    "session_id": "nothing is kept about sessions; the prefix cache finds equal prefixes by itself",
    "mm_processor_kwargs": _OF_IMAGES,
    "media_io_kwargs": _OF_MEDIA,
    "images_config": _OF_MEDIA,
    "return_mm_kwargs": _RENDERED,
    "return_token_offsets": _RENDERED,
    "stream_interval": "tokens are sent as they come",
    "stream_reasoning": "it is streamed as it comes",
    "return_cached_tokens_details": "usage has cached_tokens always",
    "routed_experts_prompt_start": "which experts computed a token is not returned",
    "routed_experts_start_len": "which experts computed a token is not returned",
    "rid": "SGLang's; send request_id, or the header x-request-id",
    "custom_labels": "metrics have no labels of clients",
    "bootstrap_host": _OTHER_ENGINES,
    "bootstrap_port": _OTHER_ENGINES,
    "bootstrap_room": _OTHER_ENGINES,
    "routed_dp_rank": _OTHER_ENGINES,
    "data_parallel_rank": _OTHER_ENGINES,
    "disagg_prefill_dp_rank": _OTHER_ENGINES,
}
"""Fields of OpenAI, vLLM and SGLang that every generating route accepts and that change no output → why."""
IGNORED: Final[Mapping[str, str]] = {
    "user": "names the client's user; nothing is kept about users",
    "metadata": "for OpenAI's stored answers; nothing is stored",
    "safety_identifier": "nothing is kept about users",
    "prompt_cache_key": "the prefix cache finds equal prefixes by itself",
    "reasoning_effort": "prompts of completions are not rendered by a template",
    "verbosity": "a wish to OpenAI's own models",
    "parallel_tool_calls": "prompts of completions offer no tools",
    **NEVER_MATTERS,
}
"""What chats and completions accept without effect on the output, where they do not have the field → why."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a field is refused, and the values that request nothing."""

    reason: str
    off: tuple[Any, ...] = ()
    same_as: str = ""
    """Of a field that serves instead: with its value, this one says nothing new."""


_OF_CHATS: Final = "belongs to /v1/chat/completions"
_NO_EXTENSIONS: Final = "there are no extensions that read it"
_NO_EXPERTS: Final = "which experts computed a token is not returned"
_NO_CODE: Final = "no code of requests runs on the server; see logit_bias"
_NO_TRANSFER: Final = "caches are not moved on a client's word"
NEVER_SUPPORTED: Final[Mapping[str, Refusal]] = {
    "functions": Refusal("the older form of tools; send tools", ([],)),
    "function_call": Refusal("the older form of tool_choice; send tool_choice", ("none", "auto")),
    "guided_whitespace_pattern": Refusal("JSON has one space after commas and colons and no other white space"),
    "modalities": Refusal("answers are text", (["text"],)),
    "audio": Refusal("answers are text"),
    "web_search_options": Refusal("the server searches nothing; offer the model a tool of yours"),
    "lora_path": Refusal("an adapter is chosen by 'model'", same_as="model"),
    "enable_thinking": Refusal('send chat_template_kwargs: {"enable_thinking": …}, or reasoning_effort'),
    "thinking": Refusal('send chat_template_kwargs: {"thinking": …}, or reasoning_effort'),
    "thinking_token_budget": Refusal("reasoning has no limit of its own; see reasoning_effort and max_tokens", (-1,)),
    "separate_reasoning": Refusal("reasoning never stands in the content", (True,)),
    "logits_processors": Refusal(_NO_CODE, ([],)),
    "custom_logit_processor": Refusal(_NO_CODE),
    "custom_params": Refusal(_NO_EXTENSIONS, ({},)),
    "vllm_xargs": Refusal(_NO_EXTENSIONS, ({},)),
    "kv_transfer_params": Refusal(_NO_TRANSFER, ({},)),
    "ec_transfer_params": Refusal(_NO_TRANSFER, ({},)),
    "watermarking": Refusal("there is none", (False,)),
    "logprob_token_ids": Refusal("the most likely tokens are returned: send top_logprobs, for completions logprobs"),
    "repetition_detection": Refusal("nothing looks for repeated output; see repetition_penalty and max_tokens"),
    "prompt_embeds": Refusal("prompts are text or token ids"),
    "return_hidden_states": Refusal("hidden states are not returned; see /v1/embeddings", (False,)),
    "return_routed_experts": Refusal(_NO_EXPERTS, (False,)),
    "stop_regex": Refusal("outputs stop at texts: send stop"),
    "no_stop_trim": Refusal("send include_stop_str_in_output", (False,)),
    "session_params": Refusal("nothing is kept between requests; send the whole prompt", ({},)),
    "extra_key": Refusal("send cache_salt, which keeps cached prompts apart"),
    "ngram_corpus_id": Refusal("there are no corpora"),
}
"""Fields of OpenAI, vLLM and SGLang that matter and that no generating route has → why."""
REFUSED: Final[Mapping[str, Refusal]] = {
    **NEVER_SUPPORTED,
    "suffix": Refusal("belongs to /v1/completions", ("",)),
    "messages": Refusal(_OF_CHATS),
    "prompt": Refusal("belongs to /v1/completions"),
    "max_completion_tokens": Refusal(f"{_OF_CHATS}; here it is max_tokens"),
    "top_logprobs": Refusal(f"{_OF_CHATS}; here logprobs is the number"),
    "chat_template": Refusal(_OF_CHATS),
    "chat_template_kwargs": Refusal(_OF_CHATS, ({},)),
    "documents": Refusal(_OF_CHATS, ([],)),
    "add_generation_prompt": Refusal(_OF_CHATS),
    "continue_final_message": Refusal(_OF_CHATS, (False,)),
    "resume_response": Refusal(_OF_CHATS, ("",)),
    "tools": Refusal(_OF_CHATS, ([],)),
    "tool_choice": Refusal(_OF_CHATS, ("none", "auto")),
    "include_reasoning": Refusal(f"{_OF_CHATS}; here the text comes as it is", (True,)),
    "return_prompt_text": Refusal(_OF_CHATS, (False,)),
    "previous_response_id": Refusal("belongs to /v1/responses; send the whole conversation"),
    "truncation": Refusal("belongs to /v1/responses; see truncate_prompt_tokens", ("disabled",)),
}
"""What chats and completions refuse, where they do not have the field → why."""


_MOST_SEARCHED: Final = 10_000
"""Entries of an object."""
_MESSAGE: Final = re.compile(r"(.*) - at (?:`key` in )?`\$\.?(.*)`", re.DOTALL)
"""What is wrong, and where: after the last mark, as what is wrong may hold one in a value."""
_Request = TypeVar("_Request", bound=msgspec.Struct)


def of_other_routes(kinds: Iterable[type[msgspec.Struct]], route: str, *known: Collection[str]) -> dict[str, Refusal]:
    """The fields of ``kinds``, which belong to ``route``, but for those of ``known``: refused unless their value is
    the default."""
    return {
        field.name: Refusal(f"belongs to {route}", _defaults(field))
        for kind in kinds
        for field in msgspec.structs.fields(kind)
        if not any(field.name in names for names in known)
    }


def _defaults(field: msgspec.structs.FieldInfo) -> tuple[Any, ...]:
    """The value that requests nothing."""
    if field.required:
        return ()
    return (field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory(),)


def parse(
    raw: dict[str, Any],
    kind: type[_Request],
    *,
    ignored: Mapping[str, str] = IGNORED,
    refused: Mapping[str, Refusal] = REFUSED,
) -> _Request:
    """``raw`` as a ``kind``. ``null`` means a field's default; ``"true"`` and ``"false"`` are taken for booleans.

    Raises :class:`ApiError` 400 that names the field.
    """
    if len(raw) > MAX_FIELDS:
        raise bad_request(f"the body has {len(raw)} fields, and no route knows so many; send at most {MAX_FIELDS}")
    types = field_types(kind)
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        if name in types:
            if value is not None:
                fields[name] = _to_boolean(value) if types[name] in _BOOLEANS else value
        elif name in refused:
            refusal = refused[name]
            off = (*refusal.off, raw.get(refusal.same_as)) if refusal.same_as else refusal.off
            if value is not None and not any(_same(value, each) for each in off):
                raise bad_request(f"{name!r} is not taken: {refusal.reason}", name, "unsupported")
        elif name not in ignored:
            note_unknown(name, [*types, *ignored])
    check_nested(fields, kind)
    try:
        return msgspec.convert(fields, kind, str_keys=True)
    except msgspec.ValidationError:
        pass
    try:
        return msgspec.convert(integral(fields), kind, str_keys=True)
    except RecursionError:
        raise bad_request("a value is nested too deeply") from None
    except msgspec.ValidationError as error:
        message = str(error)
        where = _MESSAGE.fullmatch(message)
        if where is None and (missing := re.search(r"missing required field `(\w+)`", message)):
            raise bad_request(f"{missing[1]!r} is required", missing[1]) from None
        if where is None:
            raise bad_request(_cut(message)) from None
        name = re.split(r"[.\[]", where[2])[0]
        raise bad_request(
            f"{where[2]}: {_cut(where[1])}{_wrong_key(fields.get(name), types.get(name))}", name
        ) from None


def _wrong_key(value: Any, kind: Any) -> str:
    """Which entry of an object has what its field (``logit_bias``) does not take, as far as that is known."""
    if not isinstance(value, dict):
        return ""
    for key, item in itertools.islice(value.items(), _MOST_SEARCHED):
        try:
            msgspec.convert({key: item}, kind, str_keys=True)
        except (msgspec.ValidationError, RecursionError):
            return f" (of the key {shortened(str(key))!r})"
    return ""


def _cut(message: str) -> str:
    """Without most of a long value that ``message`` repeats."""
    return message if len(message) <= 4 * LONGEST_ECHO else f"{message[: 4 * LONGEST_ECHO]}…"


def integral(value: Any) -> Any:
    """``value`` with 5 for 5.0, which are one number in JSON."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {key: integral(item) for key, item in value.items()}
    return [integral(item) for item in value] if isinstance(value, list) else value


@functools.cache
def field_types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A request's fields by name."""
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


_BOOLEANS: Final = (bool, bool | None)


def _same(value: Any, off: Any) -> bool:
    """0.0 is 0, but False is not."""
    return bool(value == off) and isinstance(value, bool) == isinstance(off, bool)


def _to_boolean(value: Any) -> Any:
    """Documented BladeLLM calls send ``"stream": "true"``."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value
