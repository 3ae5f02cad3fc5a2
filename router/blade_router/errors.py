"""Answers the router gives by itself, in the shape OpenAI clients expect.

Everything else a client reads comes from an engine, byte for byte.
"""

import msgspec

from blade_protocol.openai import ErrorBody, ErrorDetail

Headers = list[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """The client closed its connection: nobody is left to answer."""


class Refused(Exception):
    """The router will not or cannot forward this request; ``status`` and ``body`` say why to the client.

    Args:
        status: HTTP status, 4xx for the client's fault, 503 when no engine can be reached.
        message: what is wrong and what to change.
        code: stable machine-readable name of the error.
        retry_after: seconds a client should wait, sent as ``Retry-After``; None for errors that stay.
    """

    def __init__(self, status: int, message: str, *, code: str, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after

    @property
    def body(self) -> bytes:
        return error_body(self.status, str(self), self.code)

    @property
    def headers(self) -> Headers:
        headers = [(b"content-type", b"application/json")]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after))
        return headers


def error_body(status: int, message: str, code: str) -> bytes:
    """The OpenAI error JSON for an HTTP status."""
    if status >= 500:
        kind = "overloaded_error" if status == 503 else "server_error"
    else:
        kind = "not_found_error" if status == 404 else "invalid_request_error"
    return _encode(ErrorBody(error=ErrorDetail(message=message, type=kind, code=code)))
