"""Serialisation of a response's head."""

import time
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from blade_router.http.errors import Headers

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODILESS = frozenset((204, 304))
"""Statuses whose responses have no body."""
LAST_CHUNK: Final = b"0\r\n\r\n"

_LINES: Final = {status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode()) for status in HTTPStatus}

_SIZES: Final = [b"%x\r\n" % size for size in range(2048)]


def chunk_size(size: int) -> bytes:
    """The line before a chunk of so many bytes."""
    return _SIZES[size] if size < 2048 else b"%x\r\n" % size


class _Clock:
    """The ``date`` line of the present second."""

    __slots__ = ("line", "second")

    def __init__(self) -> None:
        self.second = 0
        self.line = b""


_clock: Final = _Clock()


def date_line() -> bytes:
    """The ``date`` header (RFC 9110 section 6.6.1), made once a second."""
    second = int(time.time())
    if second != _clock.second:
        _clock.second, _clock.line = second, b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
    return _clock.line


def status_line(status: int) -> bytes:
    """The status line."""
    return _LINES.get(status) or b"HTTP/1.1 %d Unknown\r\n" % status


def lines(headers: Headers) -> bytes:
    """Header lines, each with its line end."""
    parts: list[bytes] = []
    for name, value in headers:
        parts.append(name)
        parts.append(b": ")
        parts.append(value)
        parts.append(b"\r\n")
    return b"".join(parts)
