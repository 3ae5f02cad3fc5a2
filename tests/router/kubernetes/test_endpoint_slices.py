"""Which engines EndpointSlices name, and in what state."""

from typing import Any

import msgspec
import pytest

from blade_protocol.routing import EndpointConfig
from blade_router.kubernetes.endpoint_slices import EndpointSlice, endpoints_of, ready_pods, starting_endpoints

PORTS = [{"name": "internal", "port": 10080}, {"name": "http", "port": 9080}]


def pod(name: str, address: str, **conditions: bool | None) -> dict[str, Any]:
    target = {"kind": "Pod", "name": name, "uid": f"uid-{name}"}
    return {"addresses": [address], "conditions": conditions, "targetRef": target, "nodeName": "n"}


def ready(name: str, address: str) -> dict[str, Any]:
    return pod(name, address, ready=True, serving=True, terminating=False)


def read(*slices: dict[str, Any]) -> tuple[EndpointConfig, ...]:
    full = [{"metadata": {"name": "s"}, "addressType": "IPv4", "ports": PORTS} | each for each in slices]
    return endpoints_of(msgspec.convert(full, list[EndpointSlice]))


def test_a_ready_pod() -> None:
    assert read({"endpoints": [ready("a", "10.0.0.1")]}) == (
        EndpointConfig(name="a", url="http://10.0.0.1:9080", internal_url="http://10.0.0.1:10080"),
    )


@pytest.mark.parametrize(
    ("conditions", "draining"),
    [
        ({"ready": True, "serving": True, "terminating": False}, False),
        ({}, False),
        ({"ready": None, "serving": None, "terminating": None}, False),
        ({"ready": False, "serving": True, "terminating": True}, True),
        ({"ready": False, "serving": False, "terminating": True}, True),
        ({"ready": False, "serving": False, "terminating": False}, None),
        ({"ready": False}, None),
        ({"ready": True, "serving": False, "terminating": False}, None),  # publishNotReadyAddresses
    ],
)
def test_conditions(conditions: dict[str, bool | None], draining: bool | None) -> None:
    found = read({"endpoints": [pod("a", "10.0.0.1", **conditions)]})
    assert [endpoint.draining for endpoint in found] == ([] if draining is None else [draining])


def test_slices_add_up_in_a_stable_order() -> None:
    one, two = {"endpoints": [ready("c", "10.0.0.3"), ready("a", "10.0.0.1")]}, {"endpoints": [ready("b", "10.0.0.2")]}
    assert [endpoint.name for endpoint in read(one, two)] == ["a", "b", "c"]
    assert read(one, two) == read(two, one)


def test_a_dual_stack_pod_is_one_endpoint_by_its_first_family() -> None:
    six = {"addressType": "IPv6", "endpoints": [ready("a", "fd00::1"), ready("b", "fd00::2")]}
    four = {"endpoints": [ready("a", "10.0.0.1")]}
    for slices in ([six, four], [four, six]):
        assert [(endpoint.url, endpoint.internal_url) for endpoint in read(*slices)] == [
            ("http://10.0.0.1:9080", "http://10.0.0.1:10080"),
            ("http://[fd00::2]:9080", "http://[fd00::2]:10080"),
        ]


@pytest.mark.parametrize("first", [True, False])
def test_a_pod_in_two_slices_is_leaving_when_one_of_them_says_so(first: bool) -> None:
    slices = [
        {"endpoints": [ready("a", "10.0.0.1")]},
        {"endpoints": [pod("a", "10.0.0.1", ready=False, terminating=True)]},
    ]
    (found,) = read(*(slices if first else slices[::-1]))
    assert found.draining


@pytest.mark.parametrize("first", [True, False])
def test_an_address_that_went_to_another_pod_is_that_pods(first: bool) -> None:
    endpoints = [pod("old", "10.0.0.1", ready=False, terminating=True), ready("new", "10.0.0.1")]
    (found,) = read({"endpoints": endpoints if first else endpoints[::-1]})
    assert (found.name, found.draining) == ("new", False)


def test_what_names_no_engine_is_left_out() -> None:
    assert read({"endpoints": None, "ports": None}) == ()
    assert read({"endpoints": [ready("a", "10.0.0.1")], "ports": [{"name": "metrics", "port": 1}]}) == ()
    assert read({"endpoints": [ready("a", "10.0.0.1")], "ports": [{"name": "http", "port": None}]}) == ()
    assert read({"endpoints": [ready("a", "example.com")], "addressType": "FQDN"}) == ()


def test_endpoints_made_by_hand_need_no_pod() -> None:
    (found,) = read({"endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"name": "http", "port": 80}]})
    assert found == EndpointConfig(url="http://10.0.0.1:80")
    (found,) = read({"endpoints": [pod("näme", "10.0.0.1")]})
    assert found.name == "", "it would not fit into a header"


def test_pods_that_are_yet_to_be_ready_and_those_that_have_been() -> None:
    new = pod("new", "10.0.0.1", ready=False, serving=False, terminating=False)
    going = pod("going", "10.0.0.2", ready=False, serving=True, terminating=True)
    full = {"metadata": {"name": "s"}, "addressType": "IPv4", "ports": PORTS}
    slices = msgspec.convert([full | {"endpoints": [new, going, ready("old", "10.0.0.3")]}], list[EndpointSlice])
    assert ready_pods(slices) == {"uid-going", "uid-old"}
    [found] = starting_endpoints(slices, ready_pods(slices))
    assert (found.name, found.url, found.starting, found.draining) == ("new", "http://10.0.0.1:9080", True, False)
    assert starting_endpoints(slices, {"uid-going", "uid-old", "uid-new"}) == ()
