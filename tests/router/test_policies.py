"""Which endpoint is chosen."""

from collections import Counter
from collections.abc import Callable

import pytest
from router_support.engine import MockEngine
from router_support.serving import serving

from blade_protocol.routing import EndpointConfig, PolicyName
from blade_router.config import POLICIES
from blade_router.endpoints import Endpoint, EndpointSet
from blade_router.fields import RoutingFields
from blade_router.policies import LeastRequest, Policy, PolicyOptions, RoundRobin, make_policy
from blade_router.prefix_index import PrefixIndex
from blade_router.request import ClientRequest

REQUEST = ClientRequest("POST", "/v1/completions", RoutingFields(), b"", b"id")


def endpoints(count: int) -> list[Endpoint]:
    found = EndpointSet()
    found.update(EndpointConfig(url=f"http://10.0.0.{index}:80", name=str(index)) for index in range(count))
    return found.all


async def test_round_robin_takes_turns() -> None:
    policy, three = RoundRobin(), endpoints(3)
    three[0].in_flight = 9
    assert [policy.choose(three, REQUEST).endpoint.name for _ in range(6)] == ["0", "1", "2", "0", "1", "2"]


async def test_least_request_takes_the_least_loaded() -> None:
    policy, three = LeastRequest(), endpoints(3)
    three[0].in_flight, three[1].in_flight, three[2].in_flight = 3, 1, 2
    assert {policy.choose(three, REQUEST).endpoint.name for _ in range(5)} == {"1"}


async def test_least_request_ties_go_round() -> None:
    policy, three = LeastRequest(), endpoints(3)
    assert Counter(policy.choose(three, REQUEST).endpoint.name for _ in range(9)) == {"0": 3, "1": 3, "2": 3}
    three[1].in_flight = 1
    assert {policy.choose(three, REQUEST).endpoint.name for _ in range(9)} == {"0", "2"}


async def test_least_request_evens_out_a_burst() -> None:
    policy, four = LeastRequest(), endpoints(4)
    for _ in range(40):
        policy.choose(four, REQUEST).sent()
    assert [endpoint.in_flight for endpoint in four] == [10] * 4


@pytest.mark.parametrize("make", [RoundRobin, LeastRequest])
async def test_a_shrinking_list_is_no_problem(make: Callable[[], Policy]) -> None:
    policy, three = make(), endpoints(3)
    for size in (3, 3, 1, 2, 1, 3):
        assert policy.choose(three[:size], REQUEST).endpoint in three[:size]


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "external"])
def test_names(name: PolicyName) -> None:
    policy = make_policy(name, PolicyOptions(index=PrefixIndex()))
    assert policy.name == name
    assert policy.choose(endpoints(1), REQUEST).reason.startswith("auto" if name == "session" else name)


@pytest.mark.parametrize("policy", ["auto", "round-robin"])
async def test_sequential_requests_spread_over_idle_engines(policy: PolicyName) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, MockEngine("c") as c:
        async with serving(a, b, c, policy=policy) as router:
            for _ in range(12):
                await router.chat()
    assert len(a.received) == len(b.received) == len(c.received) == 4
