"""The bytes of an answer's head."""

from collections.abc import Iterable
from http import HTTPStatus

from blade_router.errors import Headers

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}


def status_line(status: int) -> bytes:
    """The first line of an answer."""
    return _LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status


def has_body(status: int) -> bool:
    """Answers of this status have a body, if perhaps an empty one."""
    return status >= 200 and status not in (204, 304)


def is_measured(headers: Headers) -> bool:
    """The headers say how long the body is."""
    return any(name == b"content-length" for name, _ in headers)


def lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header lines, each with its line end."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])
