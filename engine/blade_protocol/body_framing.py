"""Reading a body by its framing alone, for requests whose head offers an upgrade: llhttp stops behind such a head.

``curl --http2`` offers one with every request, bodies included. Router and engine read them alike: the offer is
ignored, so the body is one of HTTP/1.1. It is held to what llhttp holds others to: no bare line ends, no spaces around
a chunk's size.
"""

import re
from collections.abc import Callable

_SIZE = re.compile(rb"([0-9a-fA-F]{1,16})(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")
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
        # What is left is not copied for each chunk: there may be tens of thousands of them in what was received.
        position, size = 0, len(data)
        while position < size:
            if self._expected == _SIZE_LINE and not self._line:
                position = self._read_whole_chunks(data, position)
                if position >= size:
                    break
            if self._left:
                part = data[position : position + self._left]
                position += len(part)
                self._left -= len(part)
                self._on_body(part)
            else:
                end = data.find(b"\n", position)
                if end < 0:
                    self._line += data[position:]
                    break
                line = data[position:end]
                position = end + 1
                if self._line:
                    line = bytes(self._line) + line
                    self._line.clear()
                if line[-1:] != b"\r":
                    raise ValueError("a line does not end in CRLF")
                self._read_line(line[:-1])
            if not self._left and self._expected == _NOTHING:
                return data[position:]
        return None

    def _read_whole_chunks(self, data: bytes, position: int) -> int:
        """Read the chunks from ``position`` on that are whole and have nothing unusual; returns where they end."""
        while found := _CHUNK.match(data, position):
            start = found.end()
            end = start + int(found[1], 16)
            if end == start or data[end : end + 2] != b"\r\n":
                break
            self._on_body(data[start:end])
            position = end + 2
        return position

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
