"""Where machines meet: ``HOST:PORT`` of the leader, and the network interface that leads there."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

from blade_llm.parallel.route import own_address

_SIOCGIFADDR: Final = 0x8915
_IPV6_ADDRESSES: Final = Path("/proc/net/if_inet6")
INTERFACE_VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Where gloo and NCCL read the interface of their collectives; gloo otherwise takes what the host's name resolves to,
often 127.0.1.1."""


class Address(NamedTuple):
    """Of a TCP port."""

    host: str
    """Without the brackets of an IPv6 address."""
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def test_command(self) -> str:
        """A command line that tests whether somebody listens there."""
        return f"nc -vz {self.host} {self.port}"

    def with_port(self, port: int) -> Address:
        """Another port of the same host."""
        return Address(self.host, port)


def parse_address(text: str) -> Address:
    """``HOST:PORT`` or ``[IPv6]:PORT``. Raises ValueError."""
    host, separator, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if bracketed else host
    if not separator or not name or (":" in name and not bracketed) or "/" in name or not _is_port(port):
        raise ValueError(
            f"dist_init_addr is {text!r}; give HOST:PORT of the machine with --node_rank 0, like 10.0.0.1:29500"
        )
    return Address(name, int(port))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) <= 65535


def interface_towards(address: Address) -> str | None:
    """The network interface with the address that this machine has towards ``address``; None: there is no route.

    On the machine of that address it is the interface that has it. Nothing is sent.
    """
    own = own_address(address.host, address.port)
    if own is None:
        return None
    names = [name for _, name in socket.if_nameindex()]
    return _with_ipv6(own) if own.version == 6 else next((name for name in names if _ipv4(name) == own), None)


def choose_interface(address: Address) -> None:
    """Let collectives of this process and its children use the interface towards ``address``, unless the environment
    names one."""
    name = interface_towards(address)
    if name is not None:
        for variable in INTERFACE_VARIABLES:
            os.environ.setdefault(variable, name)


def _ipv4(interface: str) -> ipaddress.IPv4Address | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            return ipaddress.IPv4Address(fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError:  # it has none
            return None


def _with_ipv6(own: ipaddress.IPv6Address) -> str | None:
    try:
        lines = _IPV6_ADDRESSES.read_text().splitlines()
    except OSError:
        return None
    of_address = {int(fields[0], 16): fields[5] for line in lines if len(fields := line.split()) == 6}
    return of_address.get(int(own))
