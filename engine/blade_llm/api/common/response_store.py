"""Responses that clients may come back to, by id: so many bytes for so long, the least recently used go first.

They are files in a private folder, as any of a server's processes may be the next one to be asked. Each process counts
and drops its own; all read, and delete, those of all.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

DEFAULT_BYTES: Final = 64 << 20
DEFAULT_SECONDS: Final = 3600.0
_ID: Final = re.compile(r"resp_[0-9a-f_]{32,64}")
"""What names a file."""


class ResponseStoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where responses are kept, how many and for how long. Crosses process boundaries as msgpack."""

    folder: str = ""
    """A name that nobody can guess, made for its first response; empty: nothing is kept."""
    max_bytes: int = DEFAULT_BYTES
    """Of all the server's processes together."""
    seconds: float = DEFAULT_SECONDS
    """Since the last use."""


class ResponseStore:
    """What one of ``count`` processes, the one with number ``index``, keeps and finds."""

    def __init__(self, options: ResponseStoreOptions | None = None, *, index: int = 0, count: int = 1) -> None:
        options = options or ResponseStoreOptions()
        self._max_bytes = options.max_bytes // count if options.folder else 0
        self._lifetime = int(options.seconds * 1e9)
        self._folders = [Path(options.folder, str(number)) for number in range(count)]
        self._own = self._folders[index]
        self._kept: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Size and last known use of this process's own, in nanoseconds since 1970."""
        self._bytes = 0

    @property
    def enabled(self) -> bool:
        return self._max_bytes > 0

    def put(self, name: str, value: bytes) -> bool:
        """Keep ``value`` under an id; False where it alone is too large. Raises ``OSError``, as for a full disk."""
        if len(value) > self._max_bytes or _ID.fullmatch(name) is None:
            return False
        path, unfinished, now = self._own / name, self._own / "unfinished", _now()
        try:
            self._own.parent.mkdir(mode=0o700, exist_ok=True)
            self._own.mkdir(mode=0o700, exist_ok=True)
            with open(unfinished, "wb", opener=_private) as file:
                file.write(value)
            os.utime(unfinished, ns=(now, now))  # the file system's own clock may be behind
            unfinished.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise
        self._forget(name)
        self._kept[name] = len(value), now
        self._bytes += len(value)
        self._drop(now)
        return True

    def get(self, name: str) -> bytes | None:
        """What is kept under an id, which counts as a use; None: nothing, or no more."""
        now = _now()
        for path in self._paths(name):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime_ns + self._lifetime < now:
                    path.unlink()
                    return None
                value = path.read_bytes()
                os.utime(path, ns=(now, now))
                return value
        return None

    def delete(self, name: str) -> None:
        """Keep it no more."""
        for path in self._paths(name):
            with contextlib.suppress(OSError):
                path.unlink()
        self._forget(name)

    def _paths(self, name: str) -> Iterator[Path]:
        if self.enabled and _ID.fullmatch(name) is not None:
            yield from (folder / name for folder in self._folders)

    def _drop(self, now: int) -> None:
        """Drop what is too old, and what is too much."""
        while self._kept:
            name, (size, used) = next(iter(self._kept.items()))
            if self._bytes <= self._max_bytes and used + self._lifetime >= now:
                return
            try:
                used_since = (self._own / name).stat().st_mtime_ns
            except OSError:  # another process deleted it
                self._forget(name)
                continue
            if used_since > used:
                self._kept[name] = size, used_since
                self._kept.move_to_end(name)
                continue
            self.delete(name)

    def _forget(self, name: str) -> None:
        self._bytes -= self._kept.pop(name, (0, 0))[0]


def _now() -> int:
    return int(time.time() * 1e9)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
