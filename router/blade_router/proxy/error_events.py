"""Errors in a stream that has begun with a comment: each API has an event of its own for them."""

from typing import Any

import msgspec

from blade_protocol import anthropic, paths
from blade_router.request.request import ClientRequest
from blade_router.resume.numbered_events import ErrorEvent

_STREAMS = frozenset((paths.CHAT_COMPLETIONS, paths.COMPLETIONS, paths.RESPONSES, paths.MESSAGES))

_encode = msgspec.json.Encoder().encode


def wants_stream(request: ClientRequest) -> bool:
    """The response is to be a stream, if it is no error."""
    stream = request.fields.stream
    return request.path in _STREAMS and (stream.lower() == "true" if isinstance(stream, str) else stream is True)


def error_event(path: str, body: bytes) -> bytes:
    """The event for an error's JSON, which has no line ends. What is no error in OpenAI's shape stays as it is."""
    if path == paths.RESPONSES:
        error = _error(body)
        code, message = str(error.get("code") or error.get("type") or "server_error"), str(error.get("message") or "")
        event = ErrorEvent(code=code, message=message or body.decode("utf-8", "replace"), sequence_number=0)
        return b"event: error\ndata: %b\n\n" % _encode(event)
    if path == paths.MESSAGES:
        if b'"type":"error"' not in body and (error := _error(body)):  # of an engine that is not ours
            kind = str(error.get("type"))
            shown = {"type": "api_error" if kind == "server_error" else kind, "message": error.get("message")}
            body = _encode({"type": "error", "error": shown})
        return anthropic.error_event(body)
    return b"data: %b\n\n" % body


def _error(body: bytes) -> dict[str, Any]:
    """The error in OpenAI's shape; empty where it is none."""
    try:
        found: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, dict) else {}
