"""Who the client is when proxies stand in front of the router."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

FORWARDED_FOR = b"x-forwarded-for"
MAX_HOPS = 16
"""Addresses of the header that are read, from its end."""


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class TrustedProxies:
    """The networks of proxies whose ``X-Forwarded-For`` is believed: what any other client writes there is ignored."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, networks: Iterable[str]) -> Self:
        """Parse ``10.0.0.0/8`` or ``192.168.1.7`` and the like.

        Raises:
            ValueError: one is no network.
        """
        return cls(tuple(ipaddress.ip_network(network.strip(), strict=False) for network in networks))

    def trusts(self, address: str) -> bool:
        """Whether one of these proxies has that address."""
        return bool(self.networks) and _is_in(self.networks, address)

    def client(self, peer: str, forwarded_for: Iterable[bytes]) -> str:
        """The client's address: the last one that no trusted proxy has.

        Args:
            peer: the address the connection comes from.
            forwarded_for: the values of all ``X-Forwarded-For`` headers, in their order.
        """
        if not self.trusts(peer):
            return peer
        hops = b",".join(forwarded_for).rsplit(b",", MAX_HOPS)[-MAX_HOPS:]
        for hop in reversed(hops):
            address = _address(hop.decode("latin-1").strip())
            if not address:
                break  # whatever stands before it cannot be believed either
            peer = address
            if not self.trusts(peer):
                break
        return peer


@lru_cache(1024)
def _is_in(networks: tuple[Network, ...], address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return any((mapped or found) in network for network in networks)


def _address(text: str) -> str:
    """The address in ``1.2.3.4``, ``1.2.3.4:80``, ``::1`` or ``[::1]:80``; empty for anything else."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""
