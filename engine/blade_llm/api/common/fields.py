"""Which request fields exist, and what happens to the others.

A field that changes the output must never be ignored in silence: what this server does not do is refused by name,
unless its value requests nothing (``audio: null``), and unknown names are refused with the nearest known one.
Bookkeeping fields that OpenAI clients send are ignored.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from blade_llm.api.common.errors import LONGEST_ECHO, ApiError, bad_request, shortened

IGNORED: Final[Mapping[str, str]] = {
    "user": "names the client's user; nothing is kept about users",
    "metadata": "for OpenAI's stored answers; nothing is stored",
    "store": "nothing is stored",
    "service_tier": "there is one tier; see priority",
    "safety_identifier": "nothing is kept about users",
    "prompt_cache_key": "the prefix cache finds equal prefixes by itself",
    "prompt_cache_retention": "blocks stay until others need the room",
    "reasoning_effort": "prompts of completions are not rendered by a template",
    "verbosity": "a wish to OpenAI's own models",
    "spaces_between_special_tokens": "changes nothing with the tokenizers library",
}
"""Fields that are accepted and do not change the output → why."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a field is refused, and the values that request nothing."""

    reason: str
    off: tuple[Any, ...] = ()


REFUSED: Final[Mapping[str, Refusal]] = {
    "functions": Refusal("the older form of tools; send tools", ([],)),
    "function_call": Refusal("the older form of tool_choice; send tool_choice", ("none", "auto")),
    "bad_words": Refusal("words span tokens; forbid token ids with logit_bias -100", ([],)),
    "allowed_token_ids": Refusal("use guided_choice or guided_regex to restrict an answer"),
    "guided_whitespace_pattern": Refusal("JSON has one space after commas and colons and no other white space"),
    "modalities": Refusal("answers are text", (["text"],)),
    "audio": Refusal("answers are text"),
    "prediction": Refusal("the engine's own speculation needs no text from clients"),
    "web_search_options": Refusal("the server searches nothing; offer the model a tool of yours"),
    "lora_path": Refusal("an adapter is chosen by 'model'"),
    "echo": Refusal("belongs to /v1/completions", (False,)),
    "suffix": Refusal("belongs to /v1/completions", ("",)),
    "messages": Refusal("belongs to /v1/chat/completions"),
    "prompt": Refusal("belongs to /v1/completions"),
    "max_completion_tokens": Refusal("belongs to /v1/chat/completions; here it is max_tokens"),
    "top_logprobs": Refusal("belongs to /v1/chat/completions; here logprobs is the number"),
    "chat_template": Refusal("belongs to /v1/chat/completions"),
    "chat_template_kwargs": Refusal("belongs to /v1/chat/completions", ({},)),
    "documents": Refusal("belongs to /v1/chat/completions", ([],)),
    "add_generation_prompt": Refusal("belongs to /v1/chat/completions"),
    "continue_final_message": Refusal("belongs to /v1/chat/completions", (False,)),
    "resume_response": Refusal("belongs to /v1/chat/completions", ("",)),
}
"""What generating routes refuse, where the route does not have the field → why."""

_MOST_SEARCHED: Final = 10_000
"""Entries of an object."""
_MESSAGE: Final = re.compile(r"(.*) - at (?:`key` in )?`\$\.?(.*)`", re.DOTALL)
"""What is wrong, and where: after the last mark, as what is wrong may hold one in a value."""
_Request = TypeVar("_Request", bound=msgspec.Struct)


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
    types = field_types(kind)
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        if name in types:
            if value is not None:
                fields[name] = _to_boolean(value) if types[name] in _BOOLEANS else value
        elif name in refused:
            if value is not None and not any(_same(value, off) for off in refused[name].off):
                raise bad_request(f"{name!r} is not taken: {refused[name].reason}", name, "unsupported")
        elif name not in ignored:
            raise _unknown(name, [*types, *ignored])
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


def _unknown(name: str, known: list[str]) -> ApiError:
    if len(name) > LONGEST_ECHO:  # the nearest name takes time that grows with its length, and there is none near
        return bad_request(f"unknown field {shortened(name)!r}", shortened(name), "unknown_field")
    near = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return bad_request(f"unknown field {name!r}{hint}", name, "unknown_field")


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
