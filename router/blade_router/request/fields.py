"""What the router reads of a request's JSON: parsed once, and only what routing and limits need.

What it cannot judge (an unknown model, a wrong type) it leaves to the engine, which has the better error.
"""

import re
from typing import Any

import msgspec

from blade_router.http.errors import Refused

ABSENT = msgspec.Raw(b"")


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation, as far as its text goes. What is ``Raw`` is JSON that nobody has decoded."""

    role: str = ""
    content: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = ABSENT


class RoutingFields(msgspec.Struct, frozen=True):
    """The part of a request body that routing and limits use."""

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
    beam_width: int | None = None
    seed: int | None = None
    priority: int | None = None
    user: str | None = None
    cache_salt: str | None = None

    @property
    def token_limit(self) -> int | None:
        """The most tokens one output may have, where the request says it; of several the highest, as APIs differ."""
        limit = self.max_completion_tokens
        for other in (self.max_tokens, self.max_output_tokens):
            if other is not None and (limit is None or other > limit):
                limit = other
        return limit if limit is None or limit > 0 else 0

    @property
    def samples(self) -> int:
        """How many outputs are generated for each prompt, those of a beam search included that are not shown."""
        return max(1, self.n or 1, self.best_of or 1, self.beam_width or 1)

    @property
    def outputs(self) -> int:
        """How many outputs are generated for all prompts."""
        prompts = 1
        if self.prompt and _PROMPTS.match(self.prompt):
            prompts = len(_decode_list(self.prompt))
        return prompts * self.samples


_PROMPTS = re.compile(rb"\s*\[\s*[\"\[]")
"""A list of texts, or of lists of tokens; one of numbers is a single prompt."""
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode = msgspec.json.Decoder(RoutingFields).decode
_decode_as = msgspec.json.decode
_INTEGER = int | None
_decode_apart = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
NOTHING = RoutingFields()


def parse_fields(body: bytes) -> RoutingFields:
    """The fields of a JSON body.

    Raises:
        Refused: 400, the body is not JSON, or not UTF-8.
    """
    try:
        if not body.isascii():
            body.decode()  # msgspec decodes only the fields it keeps
        return _decode(body)
    except msgspec.ValidationError:
        return _each_by_itself(body)
    except UnicodeDecodeError as error:
        message = f"the request body is not valid JSON: byte {error.start} is not UTF-8"
        raise Refused(400, message, code="invalid_json") from None
    except msgspec.DecodeError as error:
        raise Refused(400, f"the request body is not valid JSON: {error}", code="invalid_json") from None


def _each_by_itself(body: bytes) -> RoutingFields:
    """Parse each field by itself: one of a wrong type must not hide the others from limits.

    Numbers are read as engines read them, some of which take ``8.0`` and ``"8"`` for 8.
    """
    try:
        values = _decode_apart(body)
    except msgspec.ValidationError:
        return NOTHING
    kept: dict[str, Any] = {}
    for field in msgspec.structs.fields(RoutingFields):
        try:
            value = values[field.name]
            kept[field.name] = _integer(value) if field.type == _INTEGER else _decode_as(value, type=field.type)
        except (KeyError, ValueError, OverflowError):
            continue
    return RoutingFields(**kept)


def _integer(raw: msgspec.Raw) -> int | None:
    """A whole number, however it is written.

    Raises:
        ValueError, OverflowError: it is none.
    """
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
