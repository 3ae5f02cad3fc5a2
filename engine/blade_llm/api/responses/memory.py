"""Responses that are kept: what is written of each, who may read it, and the conversation that led to it."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request

from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError, bad_request, shortened
from blade_llm.api.generation.resumable import Resumable
from blade_protocol import headers
from blade_protocol.resume import response_number

_TAG: Final = re.compile(r"[0-9a-f]{8}")
_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One response."""

    owner: str
    """Of the caller; no other may read it."""
    previous: str | None
    """The response it goes on from."""
    input: list[dict[str, Any]]
    """The request's own items, each with an id."""
    response: dict[str, Any]


_decode: Final = msgspec.json.Decoder(Kept).decode


def owner_of(request: Request) -> str:
    """The caller as far as it is known: the router's word for it, and the key that it sent."""
    given = (request.headers.get(name, "") for name in (headers.CALLER, "authorization"))
    return hashlib.sha256("\n".join(given).encode()).hexdigest()


def response_id(request: Request, resumable: Resumable | None) -> str:
    """An id that nobody can guess, with the router's mark of this engine. The same wherever the stream continues."""
    tag = request.headers.get(headers.RESPONSE_TAG, "")
    mark = f"{tag}_" if _TAG.fullmatch(tag) else ""
    if resumable is None:
        return f"resp_{mark}{secrets.token_hex(16)}"
    return f"resp_{mark}{response_number(resumable.key)}"


class Keeping:
    """Keeps a response once it has ended. ``what`` makes of its final form what is kept, in another thread, as the
    request may be of many items; None: it is not kept."""

    def __init__(self, context: ServerContext, what: Callable[[dict[str, Any]], Kept] | None) -> None:
        self._context = context
        self._what = what
        self._body: dict[str, Any] | None = None

    def ended(self, body: dict[str, Any]) -> None:
        """Take its final form."""
        self._body = body

    async def settled(self) -> None:
        """Returns when it is kept, if it has ended, or cannot be: see
        :class:`~blade_llm.api.common.response_writer.ResponseWriter`."""
        what, body = self._what, self._body
        if what is not None and body is not None:
            await self._context.response_writer.put(body["id"], lambda: msgspec.json.encode(what(body)))


def find(context: ServerContext, name: str, owner: str) -> Kept | None:
    """None where there is none for this caller."""
    value = context.responses.get(name)
    if value is None:
        return None
    kept = _decode(value)
    return kept if secrets.compare_digest(kept.owner, owner) else None


def earlier_items(context: ServerContext, name: str, owner: str) -> list[dict[str, Any]]:
    """The conversation up to and with a response, as input items.

    It is no longer than a request may be, however many turns it has. Raises :class:`ApiError` 400 where it is longer,
    or not kept.
    """
    turns: list[list[dict[str, Any]]] = []
    previous: str | None = name
    room = context.max_body_bytes
    while previous is not None:
        kept = find(context, previous, owner)
        if kept is None:
            raise _previous_not_found(name)
        turns.append([*kept.input, *kept.response["output"]])
        room -= len(msgspec.json.encode(turns[-1]))
        if room < 0:
            raise _previous_too_long(name, context.max_body_bytes)
        previous = kept.previous
    return [item for turn in reversed(turns) for item in turn]


def own_items(given: str | list[Any]) -> list[dict[str, Any]]:
    """A request's ``input``, which has been checked, as items with ids."""
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    return [_with_id(item) for item in given]


def not_found(name: str) -> ApiError:
    """OpenAI's error for a response that is read."""
    return ApiError(404, f"Response with id {shortened(name)!r} not found.")


def _with_id(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type") or "message"
    content = item.get("content")
    if kind == "message" and isinstance(content, str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        item = {**item, "content": [{"type": part, "text": content}]}
    own = {"id": f"{_PREFIXES.get(kind, 'item')}_{secrets.token_hex(16)}", "type": kind}
    return {**own, **{name: value for name, value in item.items() if value is not None}}


def _previous_too_long(name: str, limit: int) -> ApiError:
    message = (
        f"the conversation up to {shortened(name)!r} exceeds {limit} bytes; send its last part in 'input', without "
        "previous_response_id, or start the server with a larger --max_body_bytes"
    )
    return bad_request(message, "previous_response_id")


def _previous_not_found(name: str) -> ApiError:
    message = (
        f"Previous response with id {shortened(name)!r} not found: it is kept for a while only, and by one engine. "
        "Send the whole conversation in 'input', without previous_response_id."
    )
    return bad_request(message, "previous_response_id", "previous_response_not_found")
