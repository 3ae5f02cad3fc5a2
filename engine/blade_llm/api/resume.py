"""``POST /internal/resume``: the rest of a stream whose engine died (failover).

The client's request goes to its own route once more. What that makes of the tokens that were already sent is dropped,
 so the rest begins exactly where the stream broke off.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from blade_llm.api.chat import chat_completions
from blade_llm.api.common.body import read_body
from blade_llm.api.common.context import ServerContext
from blade_llm.api.common.errors import bad_request
from blade_llm.api.common.tasks import is_served
from blade_llm.api.completions import completions
from blade_llm.api.generation.resumable import RESUMED
from blade_llm.api.messages import route as messages
from blade_llm.api.responses import route as responses
from blade_llm.api.telemetry.tracing import STATE, trace_of
from blade_protocol import headers, paths
from blade_protocol.resume import ResumeRequest
from blade_telemetry import names
from blade_telemetry.logs import request_fields

_ROUTES: Final[dict[str, Callable[[ServerContext, Request], Awaitable[Response]]]] = {
    paths.CHAT_COMPLETIONS: chat_completions,
    paths.COMPLETIONS: completions,
    paths.RESPONSES: responses.create,
    paths.MESSAGES: messages.create,
}
_decode = msgspec.json.Decoder(ResumeRequest).decode


async def resume(context: ServerContext, request: Request) -> Response:
    """Continue a stream. Raises :class:`ApiError`: 400, 409 (see :mod:`~blade_llm.api.generation.resumable`), 503."""
    context.require_service()
    try:
        resumed = _decode(await read_body(request, 2 * context.max_body_bytes))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"this is no request to resume a stream: {error}") from None
    route = _ROUTES.get(resumed.path)
    if route is None or not is_served(resumed.path, context.model.task):
        raise bad_request(f"path: {resumed.path!r} has no streams here; they are of {', '.join(_ROUTES)}", "path")
    caller, authorization = resumed.owner or ("", "")
    owner = ((headers.CALLER, caller), ("authorization", authorization))
    state: dict[str, object] = {"request_id": resumed.request_id}
    request_fields.set({**(request_fields.get() or {}), "request_id": resumed.request_id})
    if (trace := trace_of(request)) is not None:
        trace.attributes |= {
            names.OPERATION: names.operation(resumed.path),
            names.REQUEST_ID: resumed.request_id,
        }
        state[STATE] = trace
    scope = {
        **request.scope,
        "headers": [
            (b"content-type", b"application/json"),
            (headers.RESPONSE_TAG.encode(), resumed.response_tag.encode("latin-1", "replace")),
            *((name.encode(), value.encode("latin-1", "replace")) for name, value in owner if value),
        ],
        "state": state,
        RESUMED: resumed,
    }
    return await route(context, Request(scope, _with_body(bytes(resumed.request), request.receive)))


def _with_body(body: bytes, receive: Receive) -> Receive:
    """``receive`` of a request that has ``body`` before whatever comes."""
    message: Message | None = {"type": "http.request", "body": body, "more_body": False}

    async def first_the_body() -> Message:
        nonlocal message
        if message is None:
            return await receive()
        first, message = message, None
        return first

    return first_the_body
