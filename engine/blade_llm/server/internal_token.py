"""The secret that opens the internal port, in a file that may change: Kubernetes replaces a mounted Secret in place.

A server that had to restart for a new token would lose its model and its cache over it.
"""

from __future__ import annotations

import hmac
import logging
import os
from pathlib import Path
from typing import Final

_log: Final = logging.getLogger(__name__)


class InternalToken:
    """What ``path`` holds now, without surrounding white space.

    Raises:
        OSError: from the constructor, when the file cannot be read.
        ValueError: from the constructor, when it is empty. Later on, such a file leaves the last token in force.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._signature()
        self._token = self._read()

    def accepts(self, given: str) -> bool:
        """Whether this is the token. Checks the file first, so that an old one ends as soon as it is replaced."""
        self._refresh()
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _refresh(self) -> None:
        try:
            signature = self._signature()
            if signature == self._seen:
                return
            self._seen = signature
            self._token = self._read()
            _log.info("the internal token changed")
        except FileNotFoundError:
            pass  # between two versions
        except (OSError, ValueError) as error:
            _log.warning("%s: %s; the last internal token stays in force", self._path, error)

    def _signature(self) -> tuple[int, int, int]:
        stat = os.stat(self._path)
        return stat.st_mtime_ns, stat.st_ino, stat.st_size

    def _read(self) -> str:
        token = self._path.read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError("the file is empty")
        return token
