"""Errors the router responds with itself, in the shape OpenAI clients expect; on the paths of Anthropic's API, in that
which its clients expect.

Everything else a client reads comes from an engine, byte for byte.
"""

from collections.abc import Iterable, Sequence

import msgspec

from blade_protocol import anthropic
from blade_protocol.openai import ErrorBody, ErrorDetail

Headers = list[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode


def header_of(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    """The first header of that name (in lower case), empty without one."""
    return next((value for name, value in headers if name == wanted), b"")


class ClientGone(Exception):
    """The client closed its connection: nobody is left to respond to."""


class Refused(Exception):
    """The router will not or cannot forward this request; ``status`` and ``body`` say why to the client.

    Args:
        status: HTTP status, 4xx for the client's fault, 503 when no engine can be reached.
        message: what is wrong and what to change.
        code: stable machine-readable name of the error.
        retry_after: seconds a client should wait, sent as ``Retry-After``; None for permanent errors.
        kind: OpenAI's ``type`` of error, where the status alone does not say it.
        param: the field at fault.
        headers: further headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        retry_after: int | None = None,
        kind: str = "",
        param: str | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.kind = kind
        self.param = param
        self._headers = headers
        self.path = b""
        """The request's, where it is refused before it is complete."""

    @property
    def body(self) -> bytes:
        return error_body(self.status, str(self), self.code, self.kind, self.param)

    def message_body(self, request_id: str | None) -> bytes:
        """The body in Anthropic's shape."""
        return anthropic.error_body(self.status, str(self), self.code, request_id)

    @property
    def headers(self) -> Headers:
        headers = [(b"content-type", b"application/json"), *self._headers]
        if self.retry_after is not None:
            headers.append((b"retry-after", b"%d" % self.retry_after))
        return headers


def error_body(status: int, message: str, code: str, kind: str = "", param: str | None = None) -> bytes:
    """The OpenAI error JSON for an HTTP status."""
    if kind:
        pass
    elif status >= 500:
        kind = "overloaded_error" if status == 503 else "server_error"
    else:
        kind = "not_found_error" if status == 404 else "invalid_request_error"
    return _encode(ErrorBody(error=ErrorDetail(message=message, type=kind, param=param, code=code)))
