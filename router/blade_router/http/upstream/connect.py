"""Opening a connection to an engine, or to the Kubernetes API."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import cast

from blade_router.http.accept.descriptors import out_of_descriptors
from blade_router.http.upstream.connection import DEAD_AFTER, Connection
from blade_router.http.upstream.errors import ConnectFailed, connect_failed


async def connect(host: str, port: int, timeout: float, tls: ssl.SSLContext | None = None) -> Connection:
    """Open a connection (TCP_NODELAY is what asyncio and uvloop set by default).

    Raises:
        ConnectFailed: refused, unreachable, unresolved, not accepted within ``timeout`` seconds, or not trusted.
        OutOfResources: there is no descriptor or port left for it.
    """
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        async with asyncio.timeout(timeout):
            make = cast(Callable[[], asyncio.Protocol], Connection)
            transport, protocol = await asyncio.get_running_loop().create_connection(make, host, port, ssl=tls)
    except TimeoutError:
        raise ConnectFailed(f"{where} did not accept within {timeout:g} s") from None
    except (OSError, UnicodeError) as error:  # UnicodeError: an impossible host name
        code = getattr(error, "errno", None)
        why = "connection refused" if code == errno.ECONNREFUSED else getattr(error, "strerror", None) or str(error)
        if isinstance(error, socket.gaierror) and out_of_descriptors():
            code = errno.EMFILE  # the resolver says only that it failed
        raise connect_failed(f"cannot connect to {where}: {why}", code) from None
    _set_options(transport.get_extra_info("socket"))
    return cast(Connection, protocol)


def _set_options(sock: socket.socket) -> None:
    """Set TCP keep-alive and user time-out: the kernel breaks the connection to a dead peer after ``DEAD_AFTER``."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_AFTER // 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, DEAD_AFTER // 3)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER * 1000)
    except OSError:  # it broke already, which its protocol is notified of
        pass
