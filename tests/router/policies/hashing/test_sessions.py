"""Affinity: sessions, consistent hashing, and the revision of a canary."""

import random
import time
from collections import Counter

import pytest
from router_support.policies import REQUEST, endpoints, policy, send, serve, with_session
from router_support.simulation import chat_request, group_text

from blade_protocol.routing import PolicyName
from blade_router.policies import Canary, LeastRequest
from blade_router.policies.canary import REPORT_SECONDS

# sessions and hashing


async def test_a_session_stays() -> None:
    chooser, five = policy("session"), endpoints(5)
    homes = {name: serve(chooser, five, with_session(name)) for name in map(str, range(50))}
    assert set(homes.values()) == {"0", "1", "2", "3", "4"}
    assert all(serve(chooser, five, with_session(name)) == home for name, home in homes.items())
    gone = five[2]
    left = [endpoint for endpoint in five if endpoint is not gone]
    for name, home in homes.items():
        if home != gone.name:
            assert serve(chooser, left, with_session(name)) == home


async def test_the_field_user_is_a_session_too() -> None:
    chooser, five = policy("session"), endpoints(5)
    assert chooser.choose(five, chat_request("a", user="me")).reason == "session"
    assert len({serve(chooser, five, chat_request(group_text(group), user="me")) for group in range(9)}) == 1


async def test_a_session_too_many_spills_over() -> None:
    chooser, four = policy("session"), endpoints(4)
    for _ in range(100):
        send(chooser.choose(four, with_session("popular")))
    assert max(endpoint.in_flight for endpoint in four) <= 32  # 1.25 times the mean
    assert "skipped=" in chooser.choose(four, with_session("popular")).reason


@pytest.mark.parametrize("name", ["consistent-hash", "session"])
async def test_routers_agree_whatever_the_order(name: PolicyName) -> None:
    one, other, five = policy(name), policy(name), endpoints(5)
    shuffled = random.Random(4).sample(five, 5)
    for at in range(40):
        request = with_session(str(at))
        assert one.choose(five, request).endpoint is other.choose(shuffled, request).endpoint


async def test_consistent_hash_keys_by_the_first_kilobyte() -> None:
    chooser, five = policy("consistent-hash"), endpoints(5)
    shared = group_text(1, 5)
    assert len({serve(chooser, five, chat_request(shared + str(at))) for at in range(20)}) == 1
    assert len({serve(chooser, five, chat_request(group_text(at, 5))) for at in range(40)}) == 5


# canary


async def test_canary_shares_are_exact() -> None:
    chooser, four = policy("least-request", {"new": 10, "old": 90}), endpoints(4, ["old", "new"])
    counts: Counter[str] = Counter()
    for _ in range(200):
        choice = chooser.choose(four, REQUEST)
        counts[choice.endpoint.revision] += 1
    assert counts == {"old": 180, "new": 20}
    assert chooser.choose(four, REQUEST).reason.startswith("canary rev=old least-request")


async def test_an_engine_whose_revision_is_not_known_yet_waits_for_that() -> None:
    chooser, two = policy("least-request", {"new": 0, "old": 100}), endpoints(2, ["old", ""])
    two[1].health.warming_since = time.monotonic()
    two[1].report.reported_at = 0.0
    assert {serve(chooser, two, REQUEST) for _ in range(20)} == {"0"}
    assert serve(chooser, two[1:], REQUEST) == "1", "while there is no other it serves"
    two[1].health.warming_since -= REPORT_SECONDS
    assert {serve(chooser, two, REQUEST) for _ in range(20)} == {"0", "1"}, "it reports none: its share is by number"


async def test_canary_keeps_a_user_on_one_revision() -> None:
    chooser, four = policy("auto", {"new": 30, "old": 70}), endpoints(4, ["old", "new"])
    homes: dict[str, set[str]] = {}
    for at in range(600):
        name = str(at % 200)
        homes.setdefault(name, set()).add(chooser.choose(four, with_session(name)).endpoint.revision)
    assert all(len(each) == 1 for each in homes.values())
    assert 40 <= sum(each == {"new"} for each in homes.values()) <= 80
    more = policy("auto", {"new": 60, "old": 40})
    for name, each in homes.items():  # nobody goes back while the share of the new one grows
        if each == {"new"}:
            assert more.choose(four, with_session(name)).endpoint.revision == "new"


async def test_canary_of_weight_zero_waits() -> None:
    chooser, four = policy("round-robin", {"new": 0, "old": 1}), endpoints(4, ["old", "new"])
    assert {chooser.choose(four, REQUEST).endpoint.revision for _ in range(20)} == {"old"}
    new_ones = [endpoint for endpoint in four if endpoint.revision == "new"]
    assert chooser.choose(new_ones, REQUEST).endpoint in new_ones


async def test_canary_leaves_other_revisions_what_load_would_give_them() -> None:
    chooser, six = policy("least-request", {"new": 1, "old": 3}), endpoints(6, ["old", "new", "lost"])
    counts = Counter(chooser.choose(six, REQUEST).endpoint.revision for _ in range(120))
    assert counts == {"lost": 40, "new": 20, "old": 60}


async def test_canary_with_weights_for_nobody_is_no_canary() -> None:
    chooser = Canary(LeastRequest(), {"x": 0, "y": 0})
    four = endpoints(4, ["x", "y"])
    assert Counter(chooser.choose(four, REQUEST).endpoint.revision for _ in range(40)) == {"x": 20, "y": 20}
