"""Several sockets on one port: connections for all of them, and no port for two servers."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator

import pytest

from blade_llm.cli.server import StartError, _bind_ports
from blade_llm.server.http.access import AccessRules
from blade_llm.server.http.limits import HttpLimits
from blade_llm.server.http.sockets import share_port
from blade_llm.server.supervisor import Ports, PortTakenError


@contextlib.contextmanager
def _bound(port: int, count: int) -> Iterator[Ports]:
    """What a server binds when it starts."""
    with contextlib.ExitStack() as stack:
        first, internal = (stack.enter_context(socket.socket()) for _ in range(2))
        for sock, number in ((first, port), (internal, 0)):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", number))
        public = share_port(first, count)
        for sock in public:
            stack.enter_context(sock)
        yield Ports(public, internal, AccessRules(), AccessRules(), HttpLimits())


def _port(ports: Ports) -> int:
    return int(ports.public[0].getsockname()[1])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("others", [1, 3])
def test_of_two_servers_that_start_at_once_one_gets_the_port(count: int, others: int) -> None:
    with _bound(0, count) as ours, _bound(_port(ours), others) as theirs:
        ours.listen()
        with pytest.raises(PortTakenError, match=f"cannot listen on port {_port(ours)}: "):
            theirs.listen()


def test_the_supervisor_keeps_no_socket_of_the_others() -> None:
    with _bound(0, 3) as ports:
        others = [socket.fromfd(sock.fileno(), sock.family, sock.type) for sock in ports.public[1:]]
        ours = (ports.public[0], ports.internal)
        ports.listen()
        assert [sock.fileno() for sock in ports.public[1:]] == [-1, -1]
        assert all(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for sock in (*ours, *others))
        for sock in others:
            sock.close()  # as another API server does when it exits
        for _ in range(20):  # none is left to a socket that nobody reads
            socket.create_connection(ours[0].getsockname()).close()
            ours[0].accept()[0].close()


def test_more_api_servers_than_there_may_be_sockets_is_an_error_that_says_so() -> None:
    flags = {"host": "127.0.0.1", "port": 0, "internal_port": None, "api_server_count": 1000}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 100, limits[1]))
    try:
        with pytest.raises(StartError, match=r"Too many open files; .* --api_server_count"):
            _bind_ports(flags, loopback_only=True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
