"""Classes of IP addresses, after IANA's special-purpose registries (RFC 6890), and which of them may be connected to.

``ipaddress.is_global`` is not enough: it depends on the version of Python, takes multicast, 6to4 and NAT64 addresses
for global ones, and knows no cloud's metadata service.
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final


class AddressClass(StrEnum):
    PUBLIC = "public"
    PRIVATE = "private"
    LOOPBACK = "loopback"
    LINK_LOCAL = "link-local"
    SHARED = "shared (CGNAT)"
    METADATA = "a metadata service"
    MULTICAST = "multicast"
    UNSPECIFIED = "unspecified"
    IPV4_MAPPED = "IPv4-mapped"
    NAT64 = "NAT64"
    TUNNEL = "a tunnel's (6to4, Teredo, ISATAP)"
    DOCUMENTATION = "documentation"
    BENCHMARKING = "benchmarking"
    RESERVED = "reserved"


_METADATA: Final = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",  # most clouds
            "169.254.170.2",  # AWS ECS: credentials of a task
            "169.254.170.23",  # AWS EKS Pod Identity
            "fd00:ec2::254",  # AWS
            "fd00:ec2::23",  # AWS EKS Pod Identity
            "fd20:ce::254",  # Google Cloud
            "100.100.100.200",  # Alibaba Cloud
            "168.63.129.16",  # Azure's wire server, a public address
            "192.0.0.192",  # Oracle Cloud
        ),
    )
)

_IPV4: Final = [
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", AddressClass.UNSPECIFIED),
        ("10.0.0.0/8", AddressClass.PRIVATE),
        ("100.64.0.0/10", AddressClass.SHARED),
        ("127.0.0.0/8", AddressClass.LOOPBACK),
        ("169.254.0.0/16", AddressClass.LINK_LOCAL),
        ("172.16.0.0/12", AddressClass.PRIVATE),
        ("192.0.0.0/24", AddressClass.RESERVED),
        ("192.0.2.0/24", AddressClass.DOCUMENTATION),
        ("192.88.99.0/24", AddressClass.TUNNEL),
        ("192.168.0.0/16", AddressClass.PRIVATE),
        ("198.18.0.0/15", AddressClass.BENCHMARKING),
        ("198.51.100.0/24", AddressClass.DOCUMENTATION),
        ("203.0.113.0/24", AddressClass.DOCUMENTATION),
        ("224.0.0.0/4", AddressClass.MULTICAST),
        ("240.0.0.0/4", AddressClass.RESERVED),
    )
]

_IPV6: Final = [
    (IPv6Network(network), kind)
    for network, kind in (
        ("::/128", AddressClass.UNSPECIFIED),
        ("::1/128", AddressClass.LOOPBACK),
        ("::ffff:0:0/96", AddressClass.IPV4_MAPPED),
        ("64:ff9b::/96", AddressClass.NAT64),
        ("64:ff9b:1::/48", AddressClass.NAT64),
        ("2001::/32", AddressClass.TUNNEL),
        ("2001::/23", AddressClass.RESERVED),
        ("2001:db8::/32", AddressClass.DOCUMENTATION),
        ("2002::/16", AddressClass.TUNNEL),
        ("2620:4f:8000::/48", AddressClass.RESERVED),
        ("3fff::/20", AddressClass.DOCUMENTATION),
        ("fc00::/7", AddressClass.PRIVATE),
        ("fe80::/10", AddressClass.LINK_LOCAL),
        ("fec0::/10", AddressClass.PRIVATE),
        ("ff00::/8", AddressClass.MULTICAST),
    )
]

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
_ISATAP: Final = frozenset({0x00005EFE, 0x02005EFE})
"""Upper halves of the interface identifiers of RFC 5214; the lower half is an IPv4 address."""
_NEVER: Final = frozenset(
    {AddressClass.METADATA, AddressClass.MULTICAST, AddressClass.UNSPECIFIED, AddressClass.RESERVED}
)


def classify(address: IPv4Address | IPv6Address) -> AddressClass:
    """What kind of address this is. The first network that has it decides; what no network has is public only as IPv4,
    or in IPv6's global unicast range."""
    if isinstance(address, IPv4Address):
        if address in _METADATA:
            return AddressClass.METADATA
        return next((kind for network, kind in _IPV4 if address in network), AddressClass.PUBLIC)
    plain = IPv6Address(int(address))  # without its zone
    if plain in _METADATA:
        return AddressClass.METADATA
    for network, kind in _IPV6:
        if plain in network:
            return kind
    if int(plain) >> 32 & 0xFFFFFFFF in _ISATAP:
        return AddressClass.TUNNEL
    return AddressClass.PUBLIC if plain in _GLOBAL_UNICAST else AddressClass.RESERVED


def embedded_ipv4(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    """IPv4 addresses to which a packet to an IPv6 one may come."""
    if isinstance(address, IPv4Address):
        return []
    number = int(address)
    last = IPv4Address(number & 0xFFFFFFFF)
    match classify(address):
        case AddressClass.IPV4_MAPPED | AddressClass.NAT64:
            return [last]
        case AddressClass.TUNNEL if address.sixtofour is not None:
            return [address.sixtofour]
        case AddressClass.TUNNEL if address.teredo is not None:
            return list(address.teredo)
        case AddressClass.TUNNEL:
            return [last]
    return []


def permitted(address: IPv4Address | IPv6Address, *, private: bool) -> bool:
    """Whether it may be connected to. ``private``: the host is one of those whose addresses need not be public."""
    kind = classify(address)
    if kind is AddressClass.PUBLIC:
        return True
    if not private or kind in _NEVER:
        return False
    return all(classify(inner) not in _NEVER for inner in embedded_ipv4(address))
