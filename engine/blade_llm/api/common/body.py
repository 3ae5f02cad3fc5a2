"""Read a JSON request body: content type, size limit while it arrives, and syntax."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from blade_llm.api.common.errors import CLIENT_CLOSED_REQUEST, ApiError, bad_request, shortened
from blade_llm.api.common.json_faults import check_names, malformed
from blade_llm.api.common.limits import MAX_BODY_BYTES


async def read_json(request: Request, limit: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """The body as an object. Raises :class:`ApiError`: 415, 413 (beyond ``limit`` bytes), or 400."""
    check_content_type(request)
    body = await read_body(request, limit)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(body, error) from None
    if not isinstance(value, dict):
        raise bad_request("the body must be a JSON object")
    try:
        check_names(body, value)
    except RecursionError as error:
        raise malformed(body, error) from None
    return value


def check_content_type(request: Request) -> None:
    """Raise :class:`ApiError` 415 for anything but JSON, and for a body of no type.

    That is more than tidiness: those are what a page of another site can have a browser send here unasked.
    """
    given = request.headers.get("content-type")
    name = (given or "").partition(";")[0].strip().lower()
    if name == "application/json" or name.endswith("+json"):
        return
    wrong = "the request has no content type" if given is None else f"content type {shortened(name)!r} is not supported"
    raise ApiError(
        415, f"{wrong}; send the header content-type: application/json (curl: -H 'content-type: application/json')"
    )


async def read_body(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """The bytes of a body. Raises :class:`ApiError`: 413 beyond ``limit`` of them, without reading the rest."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise ApiError(CLIENT_CLOSED_REQUEST, "the client left") from None
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    # The rest of the body is not read, so the connection cannot be used again.
    message = f"the body exceeds {limit} bytes; send less, or start the server with a larger --max_body_bytes"
    return ApiError(413, message, headers={"connection": "close"})
