"""The payload log: prompts and outputs of a share of requests, for those who may keep them. Off unless asked for.

It is the engine's, as here prompts and outputs are texts: the router sees bytes of five APIs, in streams cut into
events. What looks like a secret is redacted before it is written. A thread writes; where it cannot keep up, records
are dropped and counted, and requests do not notice.
"""

from __future__ import annotations

import errno
import logging
import logging.handlers
import os
import queue
import random
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import regex

from blade_telemetry.logs import json_line

logger: Final = logging.getLogger(__name__)

MAX_PENDING: Final = 256
"""Records that wait for the thread; each is bounded, so this bounds their memory."""
KEPT_FILES: Final = 4
"""Files beside the present one: when that is full it is renamed to ``FILE.1``, that to ``FILE.2``, and so on."""
STDOUT: Final = "stdout"
REDACTED: Final = "[redacted]"
MATCH_SECONDS: Final = 0.5
"""Time one expression may take for one text; then the whole text is left out."""
DEFAULT_PATTERNS: Final = (
    r"(?i)\bbearer\s+[\w.~+/=-]{8,}",
    r"\b(?:sk|pk|rk|hf|ghp|gho|ghs|github_pat|glpat|xox[abprs])[-_][\w-]{12,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    r"(?<!\d)\+?\d(?:[ ()./-]{0,2}\d){8,}",
)
"""Keys of APIs, tokens, private keys, e-mail addresses, and numbers of nine digits and more: telephones, cards,
accounts."""


class PayloadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is logged, and where. Crosses the process boundary as msgpack."""

    target: str
    """A file, or ``stdout``."""
    sampling: float = 1.0
    """The share of requests that are logged."""
    patterns: tuple[str, ...] = ()
    """Further expressions of what is redacted."""
    record_bytes: int = 65_536
    """Characters of prompts, and of outputs, that a record keeps of each request."""
    file_bytes: int = 64 << 20
    """Size at which the file is rotated."""


def open_private(path: str | Path) -> int:
    """A descriptor that appends to a file which this user alone may read, whoever has made it.

    Raises OSError, also for a link, which could lead anywhere, and for what is no regular file.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_patterns(patterns: Sequence[str]) -> None:
    """Raises ValueError for one that is no regular expression."""
    for pattern in patterns:
        try:
            regex.compile(pattern)
        except regex.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None


class PayloadLog:
    """Writes records in a thread of its own.

    Args:
        index: of this process; each has a file of its own.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, options: PayloadOptions, index: int = 0) -> None:
        self.options = options
        self.dropped = 0
        """Records for which there was no room, or that could not be written."""
        self._patterns = [regex.compile(pattern, regex.DOTALL) for pattern in (*DEFAULT_PATTERNS, *options.patterns)]
        self._write = _writer(options, index)
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(MAX_PENDING)
        self._thread = threading.Thread(target=self._run, name="payload log", daemon=True)
        self._thread.start()

    def wants(self) -> bool:
        """Whether to log one more request."""
        return random.random() < self.options.sampling

    def put(self, record: dict[str, Any], prompts: Sequence[str], outputs: Sequence[str]) -> None:
        """Log a request, or drop it while too many wait."""
        most = self.options.record_bytes
        record |= {"time": time.time(), "prompt": _bounded(prompts, most), "output": _bounded(outputs, most)}
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def close(self, seconds: float = 2.0) -> None:
        """Write what waits, for a limited time."""
        deadline = time.monotonic() + seconds
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))

    def redact(self, text: str) -> str:
        """The text without what looks like a secret."""
        for pattern in self._patterns:
            try:
                text = pattern.sub(REDACTED, text, concurrent=True, timeout=MATCH_SECONDS)
            except TimeoutError:
                return REDACTED
        return text

    def _run(self) -> None:
        failing = False
        while (record := self._queue.get()) is not None:
            try:
                moment = datetime.fromtimestamp(record["time"], UTC).isoformat(timespec="milliseconds")
                record["time"] = moment.replace("+00:00", "Z")
                for name in ("prompt", "output"):
                    record[name] = [self.redact(text) for text in record[name]]
                self._write(json_line(record))
                failing = False
            except Exception as error:  # whatever it is, the thread must go on
                self.dropped += 1
                if not failing:
                    logger.warning("the payload log cannot be written: %s; records are dropped until it can", error)
                failing = True


def _bounded(texts: Sequence[str], most: int) -> list[str]:
    """These texts, together no longer than ``most`` characters."""
    found = []
    for text in texts:
        found.append(text if len(text) <= most else text[:most] + "…")
        most -= min(most, len(text))
    return found


def _writer(options: PayloadOptions, index: int) -> Callable[[str], None]:
    if options.target == STDOUT:
        return lambda line: print(line, flush=True, file=sys.stdout)
    path = Path(options.target)
    if index:
        path = path.with_name(f"{path.stem}-{index}{path.suffix}")
    handler = _RotatingFile(path, maxBytes=options.file_bytes, backupCount=KEPT_FILES, encoding="utf-8")

    def write(line: str) -> None:
        handler.emit(logging.makeLogRecord({"msg": line}))

    return write


class _RotatingFile(logging.handlers.RotatingFileHandler):
    """One whose errors are the caller's, and whose files are this user's alone from their first moment."""

    def _open(self) -> Any:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=lambda path, flags: open_private(path))

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is not None and not self._is_there(self.stream.fileno()):
            self.stream.close()
            self.stream = None  # opened anew below
        super().emit(record)

    def _is_there(self, descriptor: int) -> bool:
        """The file is still the one of that name: others may have moved it, like another engine with the same flag."""
        try:
            return os.path.samestat(os.stat(self.baseFilename), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        raise error if isinstance(error, OSError) else OSError(str(error))
