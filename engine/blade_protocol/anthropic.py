"""Errors of ``/v1/messages`` in the shape that Anthropic's clients expect, the same from engine and router.

https://docs.anthropic.com/en/api/errors
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from blade_protocol import paths

REQUEST_ID: Final = "request-id"
"""Anthropic's name of the header with the request's id."""
BILLING_HEADER: Final = "x-anthropic-billing-header"
"""What the first block of a coding agent's system prompt begins with. It differs in every request, and would leave
nothing of the prefix cache, so it is no part of the prompt."""
NO_THREADS: Final = "thread_unsupported_request"
"""Code of an error after which the client's tool runner sends whole conversations."""
_BELOW_MESSAGES: Final = f"{paths.MESSAGES}/"
_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class MessageErrorDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: str
    """``invalid_request_error``, ``not_found_error``, ``overloaded_error`` …"""
    message: str
    code: str | None = None
    """The code that the other routes have, which Anthropic's API has not."""
    details: Mapping[str, str] | None = None
    """``error_code``, where clients act on it."""


class MessageError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="error"):
    """A response other than 200, or the last event of a stream that fails."""

    error: MessageErrorDetail
    request_id: str | None = None


def error_type(status: int) -> str:
    """Anthropic's ``type`` of an error with this HTTP status."""
    return _TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")


def error_body(status: int, message: str, code: str | None = None, request_id: str | None = None) -> bytes:
    """``{"type": "error", "error": {"type": …, "message": …}, "request_id": …}``"""
    details = {"error_code": code} if code == NO_THREADS else None
    detail = MessageErrorDetail(type=error_type(status), message=message, code=code, details=details)
    return msgspec.json.encode(MessageError(error=detail, request_id=request_id))


def error_event(body: bytes) -> bytes:
    """An error's body as the event that ends a stream."""
    return b"event: error\ndata: %b\n\n" % body


def speaks_anthropic(path: str) -> bool:
    """The path belongs to Anthropic's API."""
    return path == paths.MESSAGES or path.startswith(_BELOW_MESSAGES)
