"""Setting fields of a request's JSON: only the bytes of those fields change, however large the rest is."""

import re
from collections.abc import Mapping

import msgspec

from blade_router.http.errors import Refused
from blade_router.request.fields import raw_fields
from blade_router.request.parse import parse_abridged
from blade_router.request.request import ClientRequest

MAX_PROBED = 6 << 20
"""Bytes that are parsed to find out which of the places that look like the field to be replaced is on the top level."""
_BEGIN = re.compile(rb"\s*\{\s*")
_AFTER = b",} \t\r\n"
_Edit = tuple[int, int, bytes]
"""Start and end of what is replaced, and by what."""


def set_fields(request: ClientRequest, values: Mapping[str, bytes], there: Mapping[str, msgspec.Raw]) -> None:
    """Set fields of the top level of a request's body to these values, which are JSON.

    Args:
        there: the present values of those of the fields that the body has.

    Raises:
        Refused: 400, a field to be replaced is written in a way that hides where it is.
    """
    abridged = request.abridged
    text = request.body if abridged is None else abridged.json
    edits = [_replacement(text, name, there[name], value) for name, value in values.items() if name in there]
    begin = _BEGIN.match(text)
    assert begin is not None
    new = b",".join(b'"%b":%b' % (name.encode(), value) for name, value in values.items() if name not in there)
    if new:
        empty = text[begin.end() : begin.end() + 1] == b"}"
        edits.append((begin.end(), begin.end(), new if empty else new + b","))
    edits.sort()
    changed = _apply(text, edits)
    request.fields = parse_abridged(changed)
    if abridged is None:
        request.body = changed
    else:
        place = abridged.position
        request.body = _apply(request.body, [(place(start), place(end), new) for start, end, new in edits])
        abridged.replace_json(changed)


def insert_text(request: ClientRequest, name: str, value: str) -> None:
    """Set a field that a request's body does not have to a text of plain letters, as quickly as that can be done.

    It goes in front, where it needs nothing to be parsed. A body that is no object stays as it is.
    """
    body = request.body
    begin = _BEGIN.match(body)
    if begin is not None:
        end = begin.end()
        comma = b"" if body[end : end + 1] == b"}" else b","
        field = b'"%b":"%b"%b' % (name.encode(), value.encode(), comma)
        request.body = b"".join((body[:end], field, memoryview(body)[end:]))
        request.added_bytes += len(field)


def _replacement(text: bytes, name: str, old: msgspec.Raw, new: bytes) -> _Edit:
    """The edit that replaces the value of a field.

    Whether the place is the right one is seen from the field's value afterwards: the same name may be at another level,
    and a name may be there twice, of which the last one counts.
    """
    pattern = re.compile(rb'"%b"\s*:\s*' % re.escape(name.encode()))
    value = bytes(old)
    probe = b"[%b]" % value  # differs from the old value, whatever the new one is
    left = MAX_PROBED
    for match in pattern.finditer(text):
        start = match.end()
        end = start + len(value)
        if not text.startswith(value, start) or text[end] not in _AFTER:
            continue
        left -= len(text)
        if left < 0:
            break
        found = raw_fields(_apply(text, [(start, end, probe)]), (name,)).get(name)
        if found is not None and bytes(found) == probe:
            return start, end, new
    raise Refused(
        400,
        f"the field {name} has to be rewritten, and cannot be found for certain; write its name without escapes, and "
        "put it in front",
        code="ambiguous_field",
    )


def _apply(text: bytes, edits: list[_Edit]) -> bytes:
    """The text with these edits, which are in order and do not overlap."""
    view = memoryview(text)
    pieces: list[bytes | memoryview] = []
    position = 0
    for start, end, new in edits:
        pieces += view[position:start], new
        position = end
    pieces.append(view[position:])
    return b"".join(pieces)
