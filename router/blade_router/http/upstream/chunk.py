"""Reading what is exactly one chunk of a chunked body, as events of a stream come: without a parser."""

from typing import Final

from blade_router.http.response_head import chunk_size

_SMALLEST: Final = 16
_THREE_DIGITS: Final = 256
_LARGEST: Final = 2047
_FRAME: Final = 4
"""Bytes around a chunk, beside the digits of its size."""


def whole_chunk(data: bytes) -> bytes:
    """The inside of one chunk of 16 to 2,047 bytes that ``data`` is, no more and no less; empty: it is something else,
    or its size is written in another way than with the least number of lower-case digits."""
    size = len(data) - _FRAME - 3
    if size < _THREE_DIGITS:
        size += 1
        if not _SMALLEST <= size < _THREE_DIGITS:
            return b""
    elif size > _LARGEST:
        return b""
    line = chunk_size(size)
    if data.startswith(line) and data.endswith(b"\r\n"):
        return data[len(line) : -2]
    return b""
