"""What the router reads of a request's JSON: parsed once, and only what routing and limits need.

What it cannot judge (an unknown model, a wrong type) it leaves to the engine, which has the better error. What may be
long is not decoded: ``Raw`` is a view of the JSON, and whoever reads it bounds the work.
"""

import secrets
from functools import lru_cache
from typing import Any

import msgspec

from blade_router.http.errors import Refused
from blade_router.request.message import ABSENT, Message

MAX_NUMBER = 1024
"""Bytes of a number, however it is written."""


class RoutingFields(msgspec.Struct, frozen=True):
    """The part of a request body that routing and limits use."""

    model: str | None = None
    stream: bool | str | None = None
    messages: msgspec.Raw = ABSENT
    """Empty where they are in ``chat``."""
    chat: list[Message] | None = None
    """The messages, read in the same go as the other fields: those of a small body in which each has a text."""
    tools: msgspec.Raw = ABSENT
    system: msgspec.Raw = ABSENT
    """Of ``/v1/messages``: what stands before the messages."""
    prompt: msgspec.Raw = ABSENT
    instructions: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    previous_response_id: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    beam_width: int | None = None
    seed: int | None = None
    priority: int | None = None
    user: str | None = None
    cache_salt: str | msgspec.UnsetType | None = msgspec.UNSET
    """None: it is there, and null or no text."""

    @property
    def has_messages(self) -> bool:
        """It is a conversation."""
        return self.chat is not None or given(self.messages)


class _ChatFields(RoutingFields, frozen=True):
    """The same with its messages read. No body has the name that is in the way."""

    messages: msgspec.Raw = msgspec.field(default=ABSENT, name=f"unread {secrets.token_hex(8)}")
    chat: list[Message] | None = msgspec.field(default=None, name="messages")


decode = msgspec.json.Decoder(RoutingFields).decode
decode_chat = msgspec.json.Decoder(_ChatFields).decode
_decode_as = msgspec.json.decode
_INTEGER = int | None
_FIELDS = tuple(field for field in msgspec.structs.fields(RoutingFields) if field.name != "chat")
_NAMES = tuple(field.name for field in _FIELDS)
NOTHING = RoutingFields()


def raw_fields(body: bytes | memoryview, names: tuple[str, ...]) -> dict[str, msgspec.Raw]:
    """The values of these fields of a JSON object, those that are there; the other fields cost no memory.

    Raises:
        msgspec.ValidationError: it is no object.
        msgspec.DecodeError, RecursionError: it is no JSON.
    """
    found = msgspec.structs.astuple(_raw_decoder(names).decode(body))
    return {name: value for name, value in zip(names, found, strict=True) if value}


@lru_cache(maxsize=256)
def _raw_decoder(names: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    fields = [(f"field_{at}", msgspec.Raw, msgspec.field(default=ABSENT, name=name)) for at, name in enumerate(names)]
    return msgspec.json.Decoder(msgspec.defstruct("RawFields", fields, frozen=True))


def given(value: msgspec.Raw) -> bool:
    """The field is there and not null."""
    return bool(value) and not (len(value) == 4 and bytes(value) == b"null")


def each_by_itself(body: bytes) -> RoutingFields:
    """Parse each field by itself: one of a wrong type must not hide the others from limits.

    Numbers are read as engines read them, some of which take ``8.0`` and ``"8"`` for 8.

    Raises:
        Refused: 400, a number is too long.
        msgspec.DecodeError: it is no JSON.
    """
    try:
        values = raw_fields(body, _NAMES)
    except msgspec.ValidationError:
        return NOTHING
    kept: dict[str, Any] = {}
    for field in _FIELDS:
        try:
            value = values[field.name]
            kept[field.name] = _integer(value) if field.type == _INTEGER else _decode_as(value, type=field.type)
        except (KeyError, ValueError, OverflowError):
            continue
    if "cache_salt" in values:
        kept.setdefault("cache_salt", None)
    return RoutingFields(**kept)


def _integer(raw: msgspec.Raw) -> int | None:
    """A whole number, however it is written.

    Raises:
        ValueError, OverflowError: it is none.
        Refused: 400, it is too long to be read.
    """
    if len(raw) > MAX_NUMBER:
        raise too_long("a number", MAX_NUMBER)
    value = _decode_as(raw, type=int | float | str | None)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)
    if isinstance(value, float):
        if not value.is_integer():
            raise ValueError(value)
        return int(value)
    return value


def not_json(error: Exception) -> Refused:
    """The refusal of a body that a parser does not take."""
    return Refused(400, f"the request body is not valid JSON: {error}", code="invalid_json")


def too_long(what: str, limit: int) -> Refused:
    return Refused(400, f"{what} in the request body is longer than {limit}; shorten it", code="value_too_long")
