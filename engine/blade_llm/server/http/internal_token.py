"""The secret that lets the router and the operator in, in a file that may change: Kubernetes replaces a mounted Secret.

A server that had to restart for a new token would lose its model and its cache over it. The pods of a service do not
see a new one at the same time, so the one before is good for a while longer.
"""

from __future__ import annotations

import hmac
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from blade_protocol.internal_token import ROTATION_SECONDS

_log: Final = logging.getLogger(__name__)


class InternalToken:
    """What ``path`` holds now, without surrounding white space. ``clock``: seconds.

    Raises:
        OSError: from the constructor, when the file cannot be read.
        ValueError: from the constructor, when it is empty. Later on, such a file leaves the last token in force.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._seen = self._signature()
        self._token = self._read()
        self._before = ""
        """The token before this one, until ``_before_ends``."""
        self._before_ends = 0.0

    def accepts(self, given: str) -> bool:
        """Whether this is the token, or was not longer than :data:`ROTATION_SECONDS` ago. Checks the file first."""
        self._refresh()
        if hmac.compare_digest(given.encode(), self._token.encode()):
            return True
        before = self._before if self._clock() < self._before_ends else ""
        return bool(before) and hmac.compare_digest(given.encode(), before.encode())

    def _refresh(self) -> None:
        try:
            signature = self._signature()
            if signature == self._seen:
                return
            self._seen = signature
            token = self._read()
            if token != self._token:
                self._before, self._token = self._token, token
                self._before_ends = self._clock() + ROTATION_SECONDS
                _log.info("the internal token changed; the one before ends in %g s", ROTATION_SECONDS)
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
