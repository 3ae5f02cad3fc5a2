"""One public port for several API-server processes, each with a listening socket of its own (``SO_REUSEPORT``).

The kernel spreads connections over the sockets by a hash. One shared socket would give a burst of connections to
whoever wakes first, and streams are long: of 256 at once, one of two processes got 188, by the hash 137. Where few
connections are open, and the hash may be uneven, one process is enough anyway.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence


def share_port(first: socket.socket, count: int) -> list[socket.socket]:
    """``first``, bound with ``SO_REUSEADDR`` and not listening, and ``count - 1`` more on its port. Raises OSError.

    ``first`` was bound without the option, and listens without it: so a port in use is noticed, be it another such
    server's.
    """
    sockets = [first]
    for _ in range(count - 1):
        sock = socket.socket(first.family, socket.SOCK_STREAM)
        sockets.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(first.getsockname())
    return sockets


def listen_all(sockets: Sequence[socket.socket], backlog: int) -> None:
    """Accept connections on all sockets that share a port. Raises OSError when another program listened first."""
    first, *others = sockets
    first.listen(backlog)
    if others:  # not before: with the option, two servers that start at once would share the port
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    for sock in others:
        sock.listen(backlog)
