"""Parsing the JSON of a request. Apart from the types of its fields, whose module cannot be compiled."""

from typing import Final

import msgspec

from blade_router.request.abridge import MAX_NAME, not_utf8
from blade_router.request.fields import RoutingFields, decode, decode_chat, each_by_itself, not_json, too_long

READ_AT_ONCE: Final = 128 << 10
"""Bytes of the largest body all of whose messages become objects."""


def parse_fields(body: bytes) -> RoutingFields:
    """The fields of a JSON body.

    Raises:
        Refused: 400, the body is not JSON, or not UTF-8, or a name or number in it is too long.
    """
    if not body.isascii():
        try:
            body.decode()  # msgspec decodes only the fields it keeps
        except UnicodeDecodeError as error:
            raise not_utf8(error.start) from None
    return parse_abridged(body)


def parse_abridged(body: bytes) -> RoutingFields:
    """The fields of a JSON body that was abridged, and whose UTF-8 was checked.

    Raises:
        Refused: as for ``parse_fields``.
    """
    try:
        try:
            fields = _decode_whole(body)
        except msgspec.ValidationError:
            fields = each_by_itself(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error) from None
    if len(body) > MAX_NAME:
        for name in (fields.model, fields.user, fields.cache_salt):
            if isinstance(name, str) and (len(name) > MAX_NAME or "\0" in name):  # the latter: it was cut
                raise too_long("model, user or cache_salt", MAX_NAME)
    return fields


def is_list(raw: msgspec.Raw) -> bool:
    """Whether a value is a list; it must be there."""
    return memoryview(raw)[0] == 0x5B


def _decode_whole(body: bytes) -> RoutingFields:
    """All fields. Messages are read with them in a small body, if each has a text or calls of tools, as most have.

    Raises:
        msgspec.ValidationError: one has a wrong type.
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: it is no JSON.
    """
    if len(body) <= READ_AT_ONCE:
        try:
            fields = decode_chat(body)
        except msgspec.ValidationError:
            return decode(body)
        for message in fields.chat or ():
            if not message.content and not message.tool_calls:
                break
        else:
            return fields
    return decode(body)
