"""Reading a body by its framing alone, for requests whose head offers an upgrade: llhttp stops behind such a head.

An offered upgrade is ignored here, so the body is one of HTTP/1.1. It is held to what llhttp holds others to: no bare
line ends, no spaces around a chunk's size.
"""

import re
from collections.abc import Callable

_SIZE = re.compile(rb"([0-9a-fA-F]{1,16})(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*")
_NOTHING, _SIZE_LINE, _END_OF_CHUNK, _TRAILER_LINE = range(4)
"""The line that is expected behind the bytes that are left."""


class BodyFraming:
    """One body, which ends after ``length`` bytes, or with the last chunk.

    Args:
        length: the Content-Length; None for a chunked body.
        on_body: called with each part of it.
    """

    def __init__(self, length: int | None, on_body: Callable[[bytes], None]) -> None:
        self._on_body = on_body
        self._left = length or 0
        """Bytes that are left of the body, or of the chunk."""
        self._line = bytearray()
        """What has come of a line."""
        self._expected = _SIZE_LINE if length is None else _NOTHING

    def feed(self, data: bytes) -> bytes | None:
        """Read received bytes; returns those behind the end of the body, None while it has not ended.

        Raises:
            ValueError: the framing is malformed.
        """
        while data:
            if self._left:
                part, data = data[: self._left], data[self._left :]
                self._left -= len(part)
                self._on_body(part)
            else:
                line, end, data = data.partition(b"\n")
                self._line += line
                if not end:
                    break
                if self._line[-1:] != b"\r":
                    raise ValueError("a line does not end in CRLF")
                complete = bytes(self._line[:-1])
                self._line.clear()
                self._read_line(complete)
            if not self._left and self._expected == _NOTHING:
                return data
        return None

    def _read_line(self, line: bytes) -> None:
        if self._expected == _SIZE_LINE:
            found = _SIZE.fullmatch(line)
            if found is None:
                raise ValueError("the size of a chunk is malformed")
            self._left = int(found[1], 16)
            self._expected = _END_OF_CHUNK if self._left else _TRAILER_LINE
        elif self._expected == _END_OF_CHUNK:
            if line:
                raise ValueError("a chunk is longer than its size")
            self._expected = _SIZE_LINE
        elif not line:
            self._expected = _NOTHING
        elif _TRAILER.fullmatch(line) is None:
            raise ValueError("a trailer is malformed")
