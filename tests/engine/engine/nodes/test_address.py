"""Where machines meet: the address on the command line, and the interface that leads there."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

import pytest

from blade_llm.engine.nodes.address import (
    INTERFACE_VARIABLES,
    Address,
    choose_interface,
    interface_towards,
    parse_address,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:29500", "10.0.0.1", 29500),
        ("leader.ns.svc:1", "leader.ns.svc", 1),
        ("[fd00::1]:65535", "fd00::1", 65535),
    ],
)
def test_an_address_is_read_and_written_alike(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)
    assert str(parse_address(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.1", "10.0.0.1:", ":29500", "fd00::1:29500", "tcp://a:1", "a:0", "a:65536", "a:x", "[]:1", "a:²"],
)
def test_what_is_no_address_is_refused_with_one_that_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"dist_init_addr is .*; give HOST:PORT .* like 10\.0\.0\.1:29500"):
        parse_address(text)


def test_the_interface_of_loopback() -> None:
    assert interface_towards(Address("127.0.0.1", 29500)) == "lo"


def test_the_interface_is_the_one_that_the_kernel_chooses() -> None:
    """Another way to find it: the route of least cost in /proc/net/route."""
    routes = [line.split() for line in Path("/proc/net/route").read_text().splitlines()[1:]]
    defaults = [route for route in routes if route[1] == "00000000" and route[7] == "00000000"]
    name = interface_towards(Address(str(ipaddress.IPv4Address("192.0.2.1")), 29500))
    assert name == (min(defaults, key=lambda route: int(route[6]))[0] if defaults else None)


def test_a_host_without_address_has_no_interface() -> None:
    assert interface_towards(Address("nowhere.invalid", 29500)) is None


def test_an_interface_of_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    gloo, nccl = INTERFACE_VARIABLES
    monkeypatch.setenv(gloo, "eth7")
    monkeypatch.setenv(nccl, "")
    monkeypatch.delenv(nccl)
    choose_interface(Address("127.0.0.1", 29500))
    assert os.environ[gloo] == "eth7"
    assert os.environ[nccl] == "lo"


def test_the_command_that_tests_an_address() -> None:
    assert Address("10.0.0.1", 29500).test_command == "nc -vz 10.0.0.1 29500"
