"""Handlers of what lies below ``/v1/responses``: a response that is kept, to read and to delete."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import ApiError, bad_request
from blade_llm.api.generation.generate import encode
from blade_llm.api.responses.memory import Kept, find, not_found, owner_of

_DEFAULT_LIMIT: Final = 20
_MOST: Final = 100


async def stored(context: ServerContext, request: Request) -> Response:
    """``/v1/responses/ID``, its ``input_items``, or to cancel it. Raises :class:`ApiError`."""
    name, _, below = str(request.path_params["rest"]).partition("/")
    known = {"": ("GET", "DELETE"), "input_items": ("GET",), "cancel": ("POST",)}.get(below)
    method = "GET" if request.method == "HEAD" else request.method
    if known is None or (not below and method == "POST"):
        raise ApiError(404, f"no route {request.url.path}", kind="not_found_error")
    if method not in known:
        message = f"{request.method} is not allowed on {request.url.path}"
        raise ApiError(405, message, headers={"allow": ", ".join(known)})
    kept = await asyncio.to_thread(find, context, name, owner_of(request))
    if kept is None:
        raise not_found(name)
    if below == "cancel":
        message = "Only a response that was created with background set to true can be cancelled, and there are none."
        raise bad_request(f"{message} To end a stream, close it.")
    if below == "input_items":
        return _json(_page(kept, request))
    if method == "DELETE":
        await context.response_writer.delete(name)
        return _json({"id": name, "object": "response", "deleted": True})
    if request.query_params.get("stream") == "true":
        message = "stream: a response that has ended is not streamed again; leave it out"
        raise bad_request(message, "stream", "unsupported")
    return _json(kept.response)


def _page(kept: Kept, request: Request) -> dict[str, Any]:
    """A part of the input items, the last one first unless ``order`` is ``asc``."""
    query = request.query_params
    order, after = query.get("order", "desc"), query.get("after")
    if order not in ("asc", "desc"):
        raise bad_request("order must be asc or desc", "order")
    limit = query.get("limit", str(_DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _MOST):
        raise bad_request(f"limit must be a number from 1 to {_MOST}", "limit")
    items = kept.input if order == "asc" else kept.input[::-1]
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise bad_request("after must be the id of one of the items", "after")
        items = items[places[0] + 1 :]
    page = items[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json")
