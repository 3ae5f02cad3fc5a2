"""Reads one HTTP/1.1 response as its bytes come: status, and a body with a length or in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HEAD_LIMIT: Final = 16 << 10
"""Bytes of the status line and the headers."""
BODY_LIMIT: Final = 128 << 10
"""Bytes of the body; in chunks with what is around them."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response."""

    status: int
    body: bytes
    keeps_alive: bool
    """Whether another request may follow on its connection."""


class ResponseReader:
    """Reads the response to one GET."""

    def __init__(self) -> None:
        self._buffer = b""
        self._status = 0
        """0: the head is not complete."""
        self._keeps_alive = True
        self._length: int | None = None
        """None: the body comes in chunks."""

    @property
    def has_begun(self) -> bool:
        """Whether something has come."""
        return bool(self._status or self._buffer)

    def feed(self, data: bytes) -> Response | None:
        """The response, once ``data`` completes it.

        Raises:
            ValueError: it is no HTTP, or longer than it may be.
        """
        self._buffer = self._buffer + data if self._buffer else data
        if not self._status and not self._read_head():
            return None
        if self._length is None:
            return self._read_chunks()
        if len(self._buffer) < self._length:
            return None
        return self._whole(self._buffer[: self._length], self._length)

    def _read_head(self) -> bool:
        """Whether the head is complete."""
        end = self._buffer.find(b"\r\n\r\n")
        if end > HEAD_LIMIT or (end < 0 and len(self._buffer) > HEAD_LIMIT):
            raise ValueError(f"the head of the response has more than {HEAD_LIMIT} bytes")
        if end < 0:
            return False
        first, *lines = self._buffer[:end].split(b"\r\n")
        version, _, rest = first.partition(b" ")
        status = rest[:3]
        if not version.startswith(b"HTTP/1.") or not status.isdigit() or not 200 <= int(status) < 600:
            raise ValueError(f"the response is {first[:100]!r}")
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        if b"transfer-encoding" in fields:
            if fields[b"transfer-encoding"].lower() != b"chunked":
                raise ValueError(f"the response is encoded as {fields[b'transfer-encoding'][:100]!r}")
        else:
            self._length = _size(fields.get(b"content-length", b"0" if status in (b"204", b"304") else b""), 10)
        self._keeps_alive = version == b"HTTP/1.1" and fields.get(b"connection", b"").lower() != b"close"
        self._buffer = self._buffer[end + 4 :]
        self._status = int(status)
        return True

    def _read_chunks(self) -> Response | None:
        """The response, once its last chunk is there. What came is read anew each time: it is short."""
        if len(self._buffer) > BODY_LIMIT:
            raise ValueError(f"the response has more than {BODY_LIMIT} bytes")
        parts, at = list[bytes](), 0
        while (end := self._buffer.find(b"\r\n", at)) >= 0:
            size = _size(self._buffer[at:end].partition(b";")[0].strip(), 16)
            if not size:
                tail = self._buffer.find(b"\r\n\r\n", end)
                return None if tail < 0 else self._whole(b"".join(parts), tail + 4)
            at = end + 2 + size + 2
            if len(self._buffer) < at:
                return None
            if self._buffer[at - 2 : at] != b"\r\n":
                raise ValueError("a chunk of the response does not end where it should")
            parts.append(self._buffer[end + 2 : at - 2])
        return None

    def _whole(self, body: bytes, end: int) -> Response:
        """``end``: of the response in what came; after more than that nobody knows where the next one begins."""
        return Response(self._status, body, self._keeps_alive and end == len(self._buffer))


def _size(text: bytes, base: int) -> int:
    """Bytes that a length says."""
    digits = b"0123456789abcdefABCDEF"[: 10 if base == 10 else None]
    if not text or not all(each in digits for each in text) or len(text) > 12:
        raise ValueError(f"the response says {text[:20]!r} for its length")
    size = int(text, base)
    if size > BODY_LIMIT:
        raise ValueError(f"the response has more than {BODY_LIMIT} bytes")
    return size
