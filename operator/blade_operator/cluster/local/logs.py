"""Container logs: one file per attempt, the current and the previous one kept, each cut when it grows too long.

The program writes the file itself, so nothing is lost when the control loop dies.
"""

from __future__ import annotations

import os
from pathlib import Path

MAX_BYTES = 10 * 1024 * 1024
"""A longer log keeps its last half of this."""
_TAIL_BYTES = 2048
_TAIL_LINES = 80


class ContainerLogs:
    """The logs of one container, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, attempt: int) -> Path:
        """The file of the ``attempt``-th start, from 0."""
        return self.folder / f"{attempt}.log"

    def open(self, attempt: int) -> Path:
        """Make room for a new attempt: all but the one before it go."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob("*.log"):
            if int(old.stem) < attempt - 1:
                old.unlink()
        self.path(attempt).touch()
        return self.path(attempt)

    def latest(self) -> int | None:
        """The newest attempt that has a log."""
        return max((int(path.stem) for path in self.folder.glob("*.log")), default=None)

    def cut(self) -> None:
        """Shorten files that have grown past ``MAX_BYTES``; their writers append, so they go on at the new end."""
        for path in self.folder.glob("*.log"):
            if path.stat().st_size > MAX_BYTES:
                with open(path, "r+b") as file:
                    file.seek(-MAX_BYTES // 2, os.SEEK_END)
                    rest = file.read().partition(b"\n")[2]
                    file.seek(0)
                    file.truncate()
                    file.write(b"[the beginning of this log was cut]\n" + rest)

    def tail(self, attempt: int) -> str:
        """The last lines of an attempt: at most 80 lines and 2,048 bytes, as in a termination message."""
        try:
            with open(self.path(attempt), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL_BYTES))
                data = file.read()
        except FileNotFoundError:
            return ""
        if size > _TAIL_BYTES:
            data = data.partition(b"\n")[2] or data
        return "".join(data.decode(errors="replace").splitlines(keepends=True)[-_TAIL_LINES:])


class Follower:
    """Reads the log of ``attempt`` bit by bit; with ``to_next``, those of later attempts after it."""

    def __init__(self, logs: ContainerLogs, attempt: int, *, to_next: bool) -> None:
        self._logs = logs
        self._attempt = attempt
        self._to_next = to_next
        self._position = 0

    def poll(self) -> bytes | None:
        """The bytes added since the last call, or None when the pod's folder is gone."""
        path = self._logs.path(self._attempt)
        try:
            with open(path, "rb") as file:
                if file.seek(0, os.SEEK_END) < self._position:
                    self._position = 0  # it was cut
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            if not self._logs.folder.parent.exists():
                return None
            data = b""
        self._position += len(data)
        latest = self._logs.latest()
        if not data and self._to_next and latest is not None and latest > self._attempt:
            self._attempt, self._position = latest, 0
            return self.poll()
        return data
