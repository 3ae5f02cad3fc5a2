"""This machine's address towards another, and ports of it."""

from __future__ import annotations

import ipaddress
import socket


def own_address(host: str, port: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that this machine has towards another; None: there is no route. Nothing is sent."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(target)  # chooses a route
            return ipaddress.ip_address(str(sock.getsockname()[0]).partition("%")[0])
    except OSError:
        return None


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
        return port
