"""ZeroMQ sockets between machines, which let in whoever knows the session's secret key, and encrypt (CURVE).

The key, in Z85, is that of the sockets that listen. Whoever connects has one of its own, which nobody looks at.
"""

from __future__ import annotations

from typing import Any

import zmq


def new_key() -> str:
    """A key for one session."""
    _, secret = zmq.curve_keypair()
    return secret.decode()


def listen_with(socket: zmq.Socket[Any], key: str) -> None:
    """To be called before ``socket`` is bound."""
    socket.curve_server, socket.curve_secretkey = True, key.encode()


def connect_with(socket: zmq.Socket[Any], key: str) -> None:
    """To be called before ``socket`` is connected."""
    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    socket.curve_serverkey = zmq.curve_public(key.encode())
    socket.ipv6 = True
