"""Logs as text, or as lines of JSON (``--log_format json``).

A line of JSON is one event whatever its message says: line breaks and control characters are escaped, so nothing that
a client sends can pass for a line of its own.
"""

from __future__ import annotations

import contextvars
import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import msgspec

LogFormat = Literal["text", "json"]
FORMATS: Final[tuple[LogFormat, ...]] = ("text", "json")
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FIELDS: Final = ("request_id", "trace_id", "key", "model", "endpoint", "status")
"""Fields that a record may bring along (``extra``)."""

request_fields: Final[contextvars.ContextVar[Mapping[str, str] | None]] = contextvars.ContextVar(
    "request_fields", default=None
)
"""Fields of whatever is logged while a request is worked on: ``request_id``, ``trace_id``."""
_ESCAPES: Final = {
    number: f"\\u{number:04x}" for number in (0x7F, *range(0x80, 0xA0), 0x2028, 0x2029)
}  # JSON escapes those below 0x20 itself; some readers take these for line ends


class JsonFormatter(logging.Formatter):
    """One JSON object a line.

    Args:
        where: further fields of each line.
    """

    def __init__(self, where: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._where = dict(where or {})

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._where,
        }
        known = request_fields.get() or {}
        for name in FIELDS:
            if (value := getattr(record, name, None) or known.get(name)) not in (None, ""):
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json_line(line)


def json_line(fields: Mapping[str, Any]) -> str:
    """These fields as one line of JSON, without its end."""
    try:
        return msgspec.json.encode(fields, enc_hook=str).decode().translate(_ESCAPES)
    except UnicodeEncodeError:  # half a surrogate pair, as in a file's name that is no UTF-8
        return json.dumps(fields, default=str)


def configure(
    level: str,
    form: LogFormat,
    *,
    where: Mapping[str, Any] | None = None,
    text: str = TEXT,
    stream: TextIO | None = None,
) -> None:
    """Log to stderr in this format.

    Args:
        where: what lines of JSON say of the process that writes them.
        text: the format of text.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(where) if form == "json" else logging.Formatter(text))
    logging.basicConfig(level=level, handlers=[handler])
