"""Which engine keeps a response: its id begins with the tag of the endpoint that made it.

The router sends the tag with the request, and the engine puts it into the id. So no router has to remember anything:
each one finds the endpoint again, also after a restart, as long as the endpoint has its name. Only where a stream was
resumed is it another one: see :mod:`blade_router.endpoints.moved_responses`.
"""

import hashlib
import re
from itertools import islice
from typing import Final

import msgspec

from blade_protocol import paths
from blade_router.request.message import ABSENT, ItemId

BELOW_RESPONSES: Final = paths.RESPONSES + "/"
GOING_ON: Final = frozenset((paths.RESPONSES, paths.INPUT_TOKENS))
"""Paths whose bodies may name the response that they go on from."""
_TAGGED: Final = re.compile(r"resp_([0-9a-f]{8})_[0-9a-f]{32}")
MOST_ITEMS: Final = 16 << 10
"""Items of a list that are read: each becomes an object, which holds other requests up."""
_ITEM: Final = re.compile(rb'"(?:msg|rs|fc|ctc)_([0-9a-f]{8}_[0-9a-f]{32})_\d{1,9}"')
"""An output item, whose id is made of its response's."""
_BETWEEN: Final = re.compile(rb"\}\s*+,\s*+\{")
"""There are as many between objects at least, also where some are inside of others or of texts."""
_REFERENCE: Final = (b"", b"null", b'""', b'"item_reference"')
"""Types of an item that stands for another one: it may be left out."""


_items = msgspec.json.Decoder(list[ItemId]).decode


def tag_in(response_id: str) -> str:
    """The tag of the endpoint that made a response; empty where the id has none."""
    found = _TAGGED.fullmatch(response_id)
    return found[1] if found is not None else ""


def caller_of(key_name: str) -> str:
    """How engines know the holder of an API key, who may come back to a response; empty without a key."""
    return hashlib.sha256(b"caller " + key_name.encode()).hexdigest()[:32] if key_name else ""


def response_of(path: str, previous: str | None, items: msgspec.Raw = ABSENT) -> str:
    """The id of the response that a request is about: by its path, or as the one that it goes on from.

    ``items``: the request's ``input``, which may refer to output items of earlier responses.
    """
    if path in GOING_ON:
        return previous or _referenced(items)
    return path[len(BELOW_RESPONSES) :].partition("/")[0] if path.startswith(BELOW_RESPONSES) else ""


def _referenced(items: msgspec.Raw) -> str:
    """The response with the last item that is referred to: where an engine keeps that one, it keeps the others too.
    Empty for more items than are read."""
    if next(islice(_BETWEEN.finditer(items), MOST_ITEMS, None), None) is not None:
        return ""
    try:
        found = _items(items)
    except (msgspec.DecodeError, RecursionError):  # a text, or nothing that an engine takes
        return ""
    for item in reversed(found):
        if item.id and not item.role and bytes(item.type) in _REFERENCE and (match := _ITEM.fullmatch(item.id)):
            return f"resp_{match[1].decode()}"
    return ""
