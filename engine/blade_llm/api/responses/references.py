"""Items of ``input`` that only name an output item of a response that is kept.

The id of an output item is made of the response's, so that it leads back to it without an index.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError, bad_request, shortened
from blade_llm.api.responses.memory import find

_OUTPUT_ITEM: Final = re.compile(r"(?:msg|rs|fc|ctc)_((?:[0-9a-f]{8}_)?[0-9a-f]{32})_\d{1,9}")
"""The response it is of, and its place there."""


def item_number(response: str) -> str:
    """What the ids of a response's output items are made of."""
    return response.removeprefix("resp_")


def has_references(items: str | list[Any]) -> bool:
    """Some of a request's ``input`` stands for items of earlier responses."""
    return not isinstance(items, str) and any(_name(item) is not None for item in items)


def resolved(context: ServerContext, items: str | list[Any], owner: str) -> str | list[Any]:
    """A request's ``input`` with the output items of kept responses in place of the references to them.

    They are no longer in all than a request may be. Raises :class:`ApiError` 400 where they are longer, or not kept.
    """
    outputs: dict[str, dict[str, dict[str, Any]]] = {}
    room = context.max_body_bytes
    found: list[Any] = []
    for index, given in enumerate(items):
        name = _name(given)
        if name is None:
            found.append(given)
            continue
        item = _find(context, name, owner, outputs)
        if item is None:
            raise _not_found(index, name)
        room -= len(msgspec.json.encode(item))
        if room < 0:
            raise _too_long(context.max_body_bytes)
        found.append(item)
    return found


def _name(item: Any) -> str | None:
    """The id of a reference, whose type may be left out; None for another item."""
    if not isinstance(item, dict) or (item.get("type") or "item_reference") != "item_reference" or "role" in item:
        return None
    name = item.get("id")
    return name if isinstance(name, str) else None


def _find(
    context: ServerContext, name: str, owner: str, outputs: dict[str, dict[str, dict[str, Any]]]
) -> dict[str, Any] | None:
    """The item of that id, None where there is none for this caller. ``outputs``: those read so far, by response."""
    match = _OUTPUT_ITEM.fullmatch(name)
    if match is None:
        return None
    response = f"resp_{match[1]}"
    if response not in outputs:
        kept = find(context, response, owner)
        outputs[response] = {} if kept is None else {item["id"]: item for item in kept.response["output"]}
    return outputs[response].get(name)


def _not_found(index: int, name: str) -> ApiError:
    message = (
        f"input[{index}]: Item with id {shortened(name)!r} not found: items of a response are kept for a while only, "
        "unless store is false, and by one engine. Send the item itself."
    )
    return bad_request(message, "input", "item_not_found")


def _too_long(limit: int) -> ApiError:
    message = (
        f"the items that 'input' refers to exceed {limit} bytes; refer to fewer, or start the server with a larger "
        "--max_body_bytes"
    )
    return bad_request(message, "input")
