"""Server-sent events out of a byte stream that is cut anywhere."""

from __future__ import annotations


class EventParser:
    """Feed it bytes as they come; it gives the data of each event that has become complete.

    Fields other than ``data`` (``event``, ``id``, ``retry``) and comments (keep-alives) are skipped: OpenAI's API does
    not use them. Lines end with LF or CRLF.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that end in ``data``."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        events = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].strip())
            elif self._data and line in (b"", b"\r"):
                events.append(b"\n".join(self._data) if len(self._data) > 1 else self._data[0])
                self._data.clear()
        return events
