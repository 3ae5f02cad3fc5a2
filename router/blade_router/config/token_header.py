"""The internal token on requests to BladeLLM engines and between replicas, in the minutes of its rotation too.

The pods of a service do not see a new token at the same time, so for a while both are sent, and both are accepted.
"""

import functools
import hmac
import logging
import time
from collections.abc import Callable
from pathlib import Path

from blade_protocol import headers
from blade_protocol.internal_token import ROTATION_SECONDS

logger = logging.getLogger("blade_router.config")

REREAD_SECONDS = 1.0
"""Between two looks at the file: a request does without one."""


class TokenHeader:
    """The header lines with the token that ``file`` holds now.

    A file that cannot be read, or is empty, leaves the last token. After a change both tokens are sent for a while:
    engines may see the new one later.

    Args:
        file: None: no token is sent.
        clock: seconds.
    """

    def __init__(self, file: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._token = self._before = b""
        self._before_ends = 0.0
        self._reread_at = float("-inf") if file is not None else float("inf")
        self._lines = b""

    def lines(self) -> bytes:
        """Whole lines, each with its line end; empty without a token."""
        now = self._clock()
        if now >= self._reread_at:
            self._reread(now)
        return self._lines

    def accepts(self, given: str) -> bool:
        """Whether this is the token, or was not longer than ``ROTATION_SECONDS`` ago; never while there is none."""
        self.lines()
        presented = given.encode("utf-8", "replace")
        return any(hmac.compare_digest(each, presented) for each in (self._token, self._before) if each)

    def _reread(self, now: float) -> None:
        self._reread_at = now + REREAD_SECONDS
        token = self._read() or self._token
        if token != self._token:
            self._before, self._token = self._token, token
            self._before_ends = now + ROTATION_SECONDS
        elif now >= self._before_ends:
            self._before = b""
        name = headers.INTERNAL_TOKEN.encode()
        self._lines = b"".join(b"%b: %b\r\n" % (name, each) for each in (self._token, self._before) if each)

    def _read(self) -> bytes:
        assert self._file is not None
        try:
            token = self._file.read_bytes().strip()
        except OSError as error:
            logger.warning("the internal token cannot be read: %s", error)
            return b""
        if b"\n" in token or b"\r" in token:
            logger.warning("%s: the internal token has more than one line", self._file)
            return b""
        return token


@functools.cache
def shared(file: Path | None) -> TokenHeader:
    """One for all who send or expect the token of ``file``: what one of them saw change, all of them know."""
    return TokenHeader(file)
