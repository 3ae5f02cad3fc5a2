"""What the router reads of a request's JSON: parsed once, and only what routing and limits need.

What it cannot judge (an unknown model, a wrong type) it leaves to the engine, which has the better error.
"""

from typing import Any

import msgspec

from blade_router.errors import Refused

ABSENT = msgspec.Raw(b"")


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation, as far as its text goes. What is ``Raw`` is JSON that nobody has decoded."""

    role: str = ""
    content: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = ABSENT


class RoutingFields(msgspec.Struct, frozen=True):
    """The part of a request body that routing and limits look at."""

    model: str | None = None
    stream: bool | str | None = None
    messages: list[Message] | None = None
    tools: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    instructions: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    seed: int | None = None
    priority: int | None = None
    user: str | None = None
    cache_salt: str | None = None

    @property
    def token_limit(self) -> int | None:
        """The most tokens one answer may have, where the request says it."""
        limit = self.max_completion_tokens
        if limit is None:
            limit = self.max_tokens
            if limit is None:
                limit = self.max_output_tokens
        return limit if limit is None or limit > 0 else 0

    @property
    def samples(self) -> int:
        """How many answers are generated."""
        return max(1, self.n or 1, self.best_of or 1)


_decode = msgspec.json.Decoder(RoutingFields).decode
_decode_apart = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
NOTHING = RoutingFields()


def parse_fields(body: bytes) -> RoutingFields:
    """The fields of a JSON body.

    Raises:
        Refused: 400, the body is not JSON, or not UTF-8.
    """
    try:
        if not body.isascii():
            body.decode()  # msgspec looks only into the fields it keeps
        return _decode(body)
    except msgspec.ValidationError:
        return _each_by_itself(body)
    except UnicodeDecodeError as error:
        message = f"the request body is not valid JSON: byte {error.start} is not UTF-8"
        raise Refused(400, message, code="invalid_json") from None
    except msgspec.DecodeError as error:
        raise Refused(400, f"the request body is not valid JSON: {error}", code="invalid_json") from None


def _each_by_itself(body: bytes) -> RoutingFields:
    """The fields that are of their type: one of a wrong type must not hide the others from limits."""
    try:
        values = _decode_apart(body)
    except msgspec.ValidationError:
        return NOTHING
    kept: dict[str, Any] = {}
    for field in msgspec.structs.fields(RoutingFields):
        try:
            kept[field.name] = msgspec.json.decode(values[field.name], type=field.type)
        except (KeyError, msgspec.ValidationError):
            continue
    return RoutingFields(**kept)
