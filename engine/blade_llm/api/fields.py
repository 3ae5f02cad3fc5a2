"""Which request fields exist, and what happens to the others.

A field that changes the answer must never be ignored in silence: features that do not exist yet are refused by name,
unless the field asks for nothing (``tools: []``), and unknown names are refused with the nearest known one. Bookkeeping
fields that OpenAI clients send are ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from blade_llm.api.errors import bad_request

IGNORED: Final = frozenset(
    {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
        "reasoning_effort", "verbosity", "spaces_between_special_tokens",
    }
)  # fmt: skip
"""Fields that may be sent and do not change the answer."""

UNAVAILABLE: Final[Mapping[str, tuple[Any, ...]]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "structured_outputs": (),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "logit_bias": ({},),
    "suffix": ("",),
    "min_p": (0,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "chat_template": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "resume_response": (),
    "lora_path": (),
}
"""Fields whose feature does not exist yet → values that ask for nothing (``null`` always does)."""

REPLACED: Final = {"functions": "tools", "function_call": "tool_choice"}
"""Fields that OpenAI has given up → what to send in place of them."""
_PATH: Final = re.compile(r" - at `\$\.?(.*)`$")
_Request = TypeVar("_Request", bound=msgspec.Struct)


def parse(raw: dict[str, Any], kind: type[_Request]) -> _Request:
    """``raw`` as a ``kind``. ``null`` means a field's default; ``"true"`` and ``"false"`` are taken for booleans.

    Raises :class:`ApiError` 400 that names the field.
    """
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        if name in types:
            if value is not None:
                fields[name] = _to_boolean(value) if types[name] is bool else value
        elif name in UNAVAILABLE:
            if value is not None and not any(_same(value, off) for off in UNAVAILABLE[name]):
                instead = f"send {REPLACED[name]!r} instead" if name in REPLACED else "leave it out"
                raise bad_request(f"{name!r} is not available in this version; {instead}", name, "unsupported")
        elif name not in IGNORED:
            near = difflib.get_close_matches(name, [*types, *UNAVAILABLE], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise bad_request(f"unknown field {name!r}{hint}", name, "unknown_field")
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        message = str(error)
        where = _PATH.search(message)
        if where is None and (missing := re.search(r"missing required field `(\w+)`", message)):
            raise bad_request(f"{missing[1]!r} is required", missing[1]) from None
        param = re.split(r"[.\[]", where[1])[0] if where else None
        text = _PATH.sub("", message)
        raise bad_request(f"{where[1]}: {text}" if where else text, param) from None


def _same(value: Any, off: Any) -> bool:
    """0.0 is 0, but False is not."""
    return value == off and isinstance(value, bool) == isinstance(off, bool)


def _to_boolean(value: Any) -> Any:
    """Documented BladeLLM calls send ``"stream": "true"``."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value
