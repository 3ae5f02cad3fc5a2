"""Accepting connections, also when descriptors run out.

The event loop's own servers give up for good (uvloop) or accept and drop everybody who waits (libuv) when ``accept``
fails for want of descriptors. Here the listening socket is left alone for a moment instead: whoever connects waits in
the kernel's queue, and is accepted when there are descriptors again.
"""

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import Callable

from blade_router.http.accept.descriptors import EXHAUSTED
from blade_router.http.listening import BACKLOG

logger = logging.getLogger("blade_router.http")

ACCEPTS_PER_TURN = 16
"""Connections accepted in one turn of the event loop: in a flood of them, requests that have come are read between."""
RETRY_SECONDS = 0.05
"""Pause in seconds after ``accept`` failed for want of descriptors."""
LOG_SECONDS = 60.0
"""Least seconds between two warnings about that."""
_BROKEN = frozenset(
    (
        *(errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET),
        *(errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.EPERM),
    )
)
"""Errors of one connection that broke while it waited (accept(2)): the next one may be well."""

Accepted = Callable[[socket.socket, str, bool], None]
"""Takes over a connection: its socket, the address of the other side (empty for one without), and whether it was
accepted with the last descriptor there was."""


class Acceptor:
    """Accepts from one listening socket.

    Args:
        exhausted: called when there is no descriptor left: gives some back, soon.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        accepted: Accepted,
        exhausted: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._listener = listener
        self._accepted = accepted
        self._exhausted = exhausted
        self._timer: asyncio.TimerHandle | None = None
        self._warned_at = -LOG_SECONDS
        self._spare = -1
        """A descriptor kept back, with which one more connection can be accepted when there is no other."""
        listener.setblocking(False)
        self._listening = False

    def start(self) -> None:
        """Accept from now on."""
        self._keep_spare()
        self._loop.add_reader(self._listener, self._accept)
        self._listening = True

    def stop(self) -> None:
        """Accept no more, and close the socket. What the kernel has queued is accepted first."""
        if not self._listening:
            return
        self._listening = False
        self._loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()
        self._accept_some(BACKLOG)
        self._listener.close()
        self._drop_spare()

    # internal

    def _accept(self) -> None:
        self._accept_some(ACCEPTS_PER_TURN)

    def _accept_some(self, most: int) -> None:
        """Accept what waits, at most so many."""
        for _ in range(most):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _BROKEN:
                    continue
                self._fail(error)
                return
            self._accepted(sock, address[0] if isinstance(address, tuple) else "", False)

    def _fail(self, error: OSError) -> None:
        """Accept one connection with the spare descriptor, then pause: what comes meanwhile waits in the kernel."""
        now = time.monotonic()
        if now - self._warned_at >= LOG_SECONDS:
            self._warned_at = now
            logger.error(
                "no connection can be accepted (%s); raise the limit of open files (ulimit -n), or lower "
                "--max_connections",
                error.strerror,
            )
        if self._spare >= 0 and error.errno in EXHAUSTED:
            self._drop_spare()
            try:
                sock, address = self._listener.accept()
            except OSError:
                pass
            else:
                self._accepted(sock, address[0] if isinstance(address, tuple) else "", True)
        self._exhausted()
        if self._listening:
            self._loop.remove_reader(self._listener)
            self._timer = self._loop.call_later(RETRY_SECONDS, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._keep_spare()
        self._loop.add_reader(self._listener, self._accept)

    def _keep_spare(self) -> None:
        if self._spare < 0:
            try:
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                pass  # there is none; the next resume tries again

    def _drop_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
