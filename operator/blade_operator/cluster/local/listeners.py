"""The listening sockets behind Services: made here, inherited by the programs that accept from them.

Programs that share one socket share its queue, so one can take another's place without a gap: what the old one has not
accepted, the new one does. A control loop that was killed leaves the socket to its programs; the next loop cannot get
it back and makes another on the same port beside it (``SO_REUSEPORT``), among which the kernel spreads connections.
"""

from __future__ import annotations

import socket
from pathlib import Path

from blade_operator.cluster.local import ports
from blade_operator.cluster.local.errors import PortInUse
from blade_operator.cluster.local.process import marked

BACKLOG = 2048


class Listeners:
    """One reference-counted socket per port, closed with its last user: no client shall wait where nobody accepts."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._sockets: dict[int, socket.socket] = {}
        self._shares: dict[int, int] = {}

    def share(self, port: int) -> int:
        """A descriptor of the socket on ``port``, for a program that is started now to inherit.

        Raises:
            PortInUse: another program has the port.
        """
        if port not in self._sockets:
            self._sockets[port] = self._listen(port)
        self._shares[port] = self._shares.get(port, 0) + 1
        return self._sockets[port].fileno()

    def release(self, port: int) -> None:
        """Drop one reference: a program ended or is about to."""
        if port not in self._sockets:
            return
        self._shares[port] -= 1
        if not self._shares[port]:
            del self._shares[port]
            self._sockets.pop(port).close()

    def close(self) -> None:
        """Close every socket here; programs keep their inherited ones."""
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()
        self._shares.clear()

    def _listen(self, port: int) -> socket.socket:
        if not ports.is_free(port) and ports.holder(port).pid not in set(marked(self._state)):
            raise PortInUse(f"port {port} is in use by {ports.holder(port)}: stop it")
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise PortInUse(f"cannot listen on port {port}: {error.strerror}") from error
        return listener
