"""Listening sockets."""

import errno
import socket

BACKLOG = 2048
DEAD_AFTER = 60
"""Seconds after which a client counts as gone whose machine acknowledges nothing."""


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Bind and listen. ``shared``: other processes of this user may bind the same port (SO_REUSEPORT).

    Raises:
        OSError: the port is in use, or the address is not this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # accepted sockets inherit these
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_AFTER // 2)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, DEAD_AFTER // 6)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER * 1000)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def shareable(host: str, port: int) -> tuple[str, int]:
    """The address that several processes can now ``listen`` on with ``shared``; port 0 becomes a free one.

    Raises:
        OSError: somebody else has the port, which sharing it would hide.
    """
    with listen(host, port) as alone:
        return host, alone.getsockname()[1]


def inherited(number: int) -> socket.socket:
    """The listening socket that the process inherited as descriptor ``number``: others may accept from it as well.

    Raises:
        OSError: that is no listening socket.
    """
    listener = socket.socket(fileno=number)
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise OSError(errno.EINVAL, "not a listening socket")
    listener.set_inheritable(False)
    return listener
