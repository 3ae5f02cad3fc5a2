"""Which addresses may be connected to."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blade_llm.multimodal.fetching.addresses import AddressClass, classify, embedded_ipv4, permitted
from blade_llm.multimodal.fetching.resolver import SystemResolver

EXAMPLES = {
    "93.184.215.14": AddressClass.PUBLIC,
    "1.1.1.1": AddressClass.PUBLIC,
    "172.15.255.255": AddressClass.PUBLIC,
    "172.32.0.0": AddressClass.PUBLIC,
    "100.63.255.255": AddressClass.PUBLIC,
    "100.128.0.0": AddressClass.PUBLIC,
    "223.255.255.255": AddressClass.PUBLIC,
    "2606:2800:21f:cb07:6820:80da:af6b:8b2c": AddressClass.PUBLIC,
    "2001:4860:4860::8888": AddressClass.PUBLIC,
    "10.0.0.1": AddressClass.PRIVATE,
    "172.16.0.1": AddressClass.PRIVATE,
    "172.31.255.255": AddressClass.PRIVATE,
    "192.168.1.1": AddressClass.PRIVATE,
    "fc00::1": AddressClass.PRIVATE,
    "fdff::1": AddressClass.PRIVATE,
    "fec0::1": AddressClass.PRIVATE,
    "127.0.0.1": AddressClass.LOOPBACK,
    "127.255.255.254": AddressClass.LOOPBACK,
    "::1": AddressClass.LOOPBACK,
    "169.254.1.1": AddressClass.LINK_LOCAL,
    "fe80::1": AddressClass.LINK_LOCAL,
    "fe80::1%eth0": AddressClass.LINK_LOCAL,
    "100.64.0.1": AddressClass.SHARED,
    "100.127.255.255": AddressClass.SHARED,
    "169.254.169.254": AddressClass.METADATA,
    "169.254.170.2": AddressClass.METADATA,
    "100.100.100.200": AddressClass.METADATA,
    "168.63.129.16": AddressClass.METADATA,
    "192.0.0.192": AddressClass.METADATA,
    "fd00:ec2::254": AddressClass.METADATA,
    "fd20:ce::254": AddressClass.METADATA,
    "224.0.0.1": AddressClass.MULTICAST,
    "239.255.255.255": AddressClass.MULTICAST,
    "ff02::1": AddressClass.MULTICAST,
    "ff0e::1": AddressClass.MULTICAST,
    "0.0.0.0": AddressClass.UNSPECIFIED,
    "0.1.2.3": AddressClass.UNSPECIFIED,
    "::": AddressClass.UNSPECIFIED,
    "255.255.255.255": AddressClass.RESERVED,
    "240.0.0.1": AddressClass.RESERVED,
    "192.0.0.9": AddressClass.RESERVED,
    "::8.8.8.8": AddressClass.RESERVED,  # IPv4-compatible
    "::ffff:0:8.8.8.8": AddressClass.RESERVED,  # IPv4-translated (SIIT)
    "100::1": AddressClass.RESERVED,  # discard-only
    "5f00::1": AddressClass.RESERVED,  # segment routing
    "4000::1": AddressClass.RESERVED,
    "2001:20::1": AddressClass.RESERVED,  # ORCHIDv2
    "2001:2::1": AddressClass.RESERVED,
    "2620:4f:8000::1": AddressClass.RESERVED,
    "::ffff:8.8.8.8": AddressClass.IPV4_MAPPED,
    "::ffff:127.0.0.1": AddressClass.IPV4_MAPPED,
    "64:ff9b::8.8.8.8": AddressClass.NAT64,
    "64:ff9b:1::10.0.0.1": AddressClass.NAT64,
    "2002:7f00:1::": AddressClass.TUNNEL,
    "2001:0:4136:e378:8000:63bf:3fff:fdd2": AddressClass.TUNNEL,
    "2a00:1450::5efe:10.0.0.1": AddressClass.TUNNEL,
    "2a00:1450::200:5efe:10.0.0.1": AddressClass.TUNNEL,
    "192.88.99.1": AddressClass.TUNNEL,
    "192.0.2.1": AddressClass.DOCUMENTATION,
    "198.51.100.1": AddressClass.DOCUMENTATION,
    "203.0.113.1": AddressClass.DOCUMENTATION,
    "2001:db8::1": AddressClass.DOCUMENTATION,
    "3fff::1": AddressClass.DOCUMENTATION,
    "198.18.0.1": AddressClass.BENCHMARKING,
    "198.19.255.255": AddressClass.BENCHMARKING,
}
NEVER = {AddressClass.METADATA, AddressClass.MULTICAST, AddressClass.UNSPECIFIED, AddressClass.RESERVED}
NOT_PUBLIC = [
    IPv4Network("0.0.0.0/8"),
    IPv4Network("10.0.0.0/8"),
    IPv4Network("100.64.0.0/10"),
    IPv4Network("127.0.0.0/8"),
    IPv4Network("169.254.0.0/16"),
    IPv4Network("172.16.0.0/12"),
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.0.2.0/24"),
    IPv4Network("192.168.0.0/16"),
    IPv4Network("198.18.0.0/15"),
    IPv4Network("198.51.100.0/24"),
    IPv4Network("203.0.113.0/24"),
    IPv4Network("224.0.0.0/4"),
    IPv4Network("240.0.0.0/4"),
]
ipv4 = st.integers(0, 2**32 - 1).map(IPv4Address)
ipv6 = st.integers(0, 2**128 - 1).map(IPv6Address)
not_public = st.sampled_from(NOT_PUBLIC).flatmap(
    lambda network: st.integers(int(network[0]), int(network[-1])).map(IPv4Address)
)


@pytest.mark.parametrize(("text", "kind"), EXAMPLES.items())
def test_each_class(text: str, kind: AddressClass) -> None:
    address = ip_address(text)
    assert classify(address) is kind
    assert permitted(address, private=False) == (kind is AddressClass.PUBLIC)
    inner = {classify(one) for one in embedded_ipv4(address)}
    assert permitted(address, private=True) == (kind not in NEVER and not inner & NEVER)


def test_every_class_has_an_example() -> None:
    assert set(EXAMPLES.values()) == set(AddressClass)


@given(st.one_of(ipv4, ipv6))
def test_public_is_global_to_the_standard_library_too(address: IPv4Address | IPv6Address) -> None:
    if classify(address) is AddressClass.PUBLIC:
        assert address.is_global
        special = (address.is_multicast, address.is_reserved, address.is_unspecified, address.is_link_local)
        assert not any(special)


@given(not_public)
def test_no_special_ipv4_address_is_public(address: IPv4Address) -> None:
    assert not permitted(address, private=False)


@given(st.one_of(ipv4, not_public), st.integers(0, 2**80 - 1))
def test_ipv4_within_ipv6_is_never_public(inner: IPv4Address, other: int) -> None:
    number = int(inner)
    forms = {
        "mapped": 0xFFFF << 32 | number,
        "compatible": number,
        "translated": 0xFFFF0000 << 32 | number,
        "nat64": 0x64FF9B << 96 | number,
        "local nat64": 0x64FF9B0001 << 80 | other & ~0xFFFFFFFF | number,
        "6to4": 0x2002 << 112 | number << 80 | other,
        "teredo server": 0x20010000 << 96 | number << 64 | other & 2**64 - 1,
        "teredo client": 0x20010000 << 96 | other & 2**64 - 1 & ~0xFFFFFFFF | number ^ 0xFFFFFFFF,
        "isatap": 0x20014860 << 96 | 0x5EFE << 32 | number,
    }
    for name, value in forms.items():
        address = IPv6Address(value)
        assert not permitted(address, private=False), name


@given(st.sampled_from(["169.254.169.254", "100.100.100.200", "224.0.0.1", "0.0.0.0"]).map(IPv4Address))
def test_what_no_list_allows_is_not_reached_through_ipv6_either(inner: IPv4Address) -> None:
    number = int(inner)
    assert not permitted(inner, private=True)
    for value in (
        0xFFFF << 32 | number,
        0x64FF9B << 96 | number,
        0x2002 << 112 | number << 80,
        0x20010000 << 96 | number << 64 | 0xFFFFFFFF,
        0x20010000 << 96 | 0x08080808 << 64 | number ^ 0xFFFFFFFF,
        0x20014860 << 96 | 0x5EFE << 32 | number,
    ):
        assert embedded_ipv4(IPv6Address(value))
        assert not permitted(IPv6Address(value), private=True)


@given(ipv6)
def test_only_global_unicast_is_public(address: IPv6Address) -> None:
    if permitted(address, private=False):
        assert address in IPv6Network("2000::/3")


@given(st.integers(1, 2**64 - 1), ipv6)
def test_a_zone_changes_nothing(zone: int, address: IPv6Address) -> None:
    assert classify(IPv6Address(f"{address}%{zone}")) is classify(address)


@pytest.mark.parametrize("host", ["127.1", "0x7f.1", "0x7f000001", "2130706433", "017700000001", "0", "localhost"])
async def test_every_way_to_write_loopback_is_refused(host: str) -> None:
    resolver = SystemResolver(1)
    try:
        found = await resolver.resolve(host, 80)
    finally:
        resolver.close()
    assert found
    assert not any(permitted(ip_address(address), private=False) for address in found)


async def test_names_that_no_name_server_takes_are_unknown() -> None:
    resolver = SystemResolver(1)
    try:
        with pytest.raises(OSError):
            await resolver.resolve("a" * 64 + ".example", 80)
        with pytest.raises(OSError):
            await resolver.resolve("name.invalid", 80)
    finally:
        resolver.close()
    assert issubclass(socket.gaierror, OSError)
