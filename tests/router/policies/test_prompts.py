"""Policies that know where prompts are cached and where adapters are."""

import random
import time
from collections import Counter

import pytest
from router_support.policies import LONG, OTHER, end, endpoints, policy, send, serve
from router_support.simulation import chat_request, group_text

from blade_protocol.routing import EndpointConfig, PolicyName
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.policies.load import REPORT_MAX_AGE, estimated_requests
from blade_router.request.usage import Usage

# prompts


@pytest.mark.parametrize("name", ["auto", "prefix", "kv-aware", "lora-affinity", "session", "consistent-hash"])
async def test_a_prompt_goes_where_its_beginning_is(name: PolicyName) -> None:
    chooser, four = policy(name), endpoints(4)
    home = serve(chooser, four, LONG)
    for _ in range(3):
        serve(chooser, four, OTHER)
        assert serve(chooser, four, chat_request(group_text(1, 16) + "and more")) == home


@pytest.mark.parametrize("name", ["auto", "prefix"])
async def test_the_reason_shows_what_was_found(name: PolicyName) -> None:
    chooser, two = policy(name), endpoints(2)
    serve(chooser, two, LONG)
    choice = chooser.choose(two, LONG)
    assert choice.reason.startswith(f"{name} prefix=16/16 in_flight=0")


async def test_auto_leaves_a_warm_endpoint_where_it_would_wait_too_long() -> None:
    chooser, two = policy("auto"), endpoints(2)
    home = serve(chooser, two, LONG)
    warm, cold = (two[0], two[1]) if home == "0" else (two[1], two[0])
    warm.in_flight = 60
    assert chooser.choose(two, LONG).endpoint is warm, "nobody waits for a prefill there"
    warm.prefill.sent(time.monotonic(), 8.0, False)
    assert chooser.choose(two, LONG).endpoint is warm, "waiting costs less than computing it again"
    warm.prefill.sent(time.monotonic(), 500.0, False)
    assert chooser.choose(two, LONG).endpoint is cold


async def test_auto_sees_the_backlog_and_the_first_byte_takes_it_away() -> None:
    chooser, two = policy("auto"), endpoints(2)
    huge = chooser.choose(two, chat_request(group_text(9, 2000)))
    send(huge)
    busy = huge.endpoint
    assert busy.backlog_tokens > 100_000
    assert busy.prefill.wait(time.monotonic(), 1) > 1.0
    other = two[1 - two.index(busy)]
    assert {serve(chooser, two, chat_request(group_text(group, 2))) for group in range(20, 40)} == {other.name}
    huge.first_byte()
    assert busy.backlog_tokens == 0
    assert busy.prefill.wait(time.monotonic(), 1) == 0.0


async def test_auto_avoids_a_full_kv_cache() -> None:
    chooser, two = policy("auto"), endpoints(2)
    two[0].report.kv_usage, two[1].report.kv_usage = 0.99, 0.3
    two[0].report.reported_at = two[1].report.reported_at = time.monotonic()
    assert {serve(chooser, two, chat_request(group_text(group, 3))) for group in range(10)} == {"1"}


async def test_a_full_kv_cache_costs_no_more_than_waiting_for_room() -> None:
    """Many requests on an engine end often: a prompt that it has cached is not computed elsewhere for that."""
    chooser, two = policy("auto"), endpoints(2)
    long = chat_request(group_text(1, 64))
    home = two[int(serve(chooser, two, long))]
    for endpoint in two:
        endpoint.prefill.service = 2.0
    home.report.kv_usage, home.report.reported_at = 1.0, time.monotonic()
    home.in_flight = 100
    assert serve(chooser, two, long) == home.name
    home.in_flight = 1
    assert serve(chooser, two, long) != home.name


async def test_auto_avoids_an_engine_without_free_slots() -> None:
    chooser, two = policy("auto"), endpoints(2)
    two[0].report.capacity, two[1].report.capacity = 96, 32
    for endpoint in two:
        endpoint.report.reported_at = time.monotonic()
        endpoint.in_flight = 40
        endpoint.prefill.ended(2.0)
    assert {serve(chooser, two, chat_request(group_text(group, 2))) for group in range(10)} == {"0"}


async def test_auto_prefers_an_engine_that_computes_faster() -> None:
    chooser, two = policy("auto"), endpoints(2)
    for endpoint, rate in zip(two, (0.004, 0.001), strict=True):
        for _ in range(9):
            started = endpoint.prefill.sent(100.0, 10.0, False)
            endpoint.prefill.first_byte(100.0 + 10.0 * rate, started, 10.0, 0.0, False)
    assert {serve(chooser, two, chat_request(group_text(group, 30))) for group in range(5)} == {"1"}


async def test_auto_prefers_an_engine_that_decodes_faster_for_streams() -> None:
    """Prompts take equally long on both: of the second one, an output token takes twice as long."""
    now = [100.0]
    chooser, two = policy("auto", clock=lambda: now[0]), endpoints(2)
    counts: Counter[str] = Counter()
    for group in range(200):
        choice = send(chooser.choose(two, chat_request(group_text(group, 3), stream=True)))
        now[0] += 0.01
        choice.first_byte()
        now[0] += 1.0 if choice.endpoint is two[0] else 2.0
        end(choice, Usage(100, 50, 0))
        counts[choice.endpoint.name] += 1
    assert counts["0"] > 3 * counts["1"] > 0


async def test_auto_keeps_everything_where_it_is_while_nobody_waits() -> None:
    chooser, four = policy("auto"), endpoints(4)
    requests = [chat_request(group_text(group, 16)) for group in range(16)]
    homes = [serve(chooser, four, request) for request in requests]
    assert sorted(map(homes.count, "0123")) == [4] * 4
    for _ in range(5):
        assert [serve(chooser, four, request) for request in requests] == homes


async def test_routers_that_know_nothing_yet_begin_with_different_engines() -> None:
    firsts = {serve(policy("auto", rng=random.Random(seed)), endpoints(8), chat_request("short")) for seed in range(40)}
    assert len(firsts) > 1


async def test_auto_ignores_stale_load_reports() -> None:
    chooser, two = policy("auto"), endpoints(2)
    for endpoint in two:
        endpoint.report.reported_at = time.monotonic() - REPORT_MAX_AGE
    two[0].report.kv_usage, two[0].report.capacity = 0.99, 1
    two[1].report.kv_usage, two[1].report.capacity = 0.3, 96
    for group in range(80):
        send(chooser.choose(two, chat_request(group_text(group, 2))))
    assert 35 <= two[0].in_flight <= 45


async def test_auto_counts_what_other_routers_sent() -> None:
    (one,) = endpoints(1)
    one.in_flight, one.report.running, one.report.waiting, one.report.reported_at = 2, 8, 4, 100.0
    assert estimated_requests(one, 100.0, 2.0) == 12
    assert estimated_requests(one, 103.0, 2.0) == 7
    assert estimated_requests(one, 107.0, 2.0) == 2  # older than three reports: ignored
    one.in_flight = 20
    assert estimated_requests(one, 100.0, 2.0) == 20


async def test_two_routers_hash_to_the_same_home() -> None:
    pairs = []
    for group in range(32):
        request = chat_request(group_text(group, 16))
        homes = []
        for seed in (1, 2):
            chooser = policy("auto", replicas=lambda: 2, rng=random.Random(seed))
            homes.append(serve(chooser, endpoints(4), request))
        pairs.append(homes)
    assert all(one == other for one, other in pairs)
    assert len({one for one, _ in pairs}) == 4


# adapters


async def test_lora_affinity_is_a_ladder() -> None:
    chooser, three = policy("lora-affinity"), endpoints(3)
    three[0].report.adapters = frozenset({"poet", "lawyer"})
    three[1].report.adapters = frozenset({"doctor", "lawyer"})  # full
    verse = chat_request(group_text(1, 2), model="poet")
    choice = chooser.choose(three, verse)
    assert choice.endpoint is three[0]
    assert choice.reason.endswith("adapter=1")
    three[0].prefill.sent(time.monotonic(), 500.0, False)
    choice = chooser.choose(three, verse)
    assert choice.endpoint is three[2]  # has room
    assert choice.reason.endswith("adapter=0.6")
    choice = chooser.choose(three, verse)
    assert choice.reason.endswith("adapter=0.8")  # and is loading it by now
    assert chooser.scores(three, verse)["1"]["adapter"] == 0


async def test_only_endpoints_with_the_adapter_are_candidates() -> None:
    found = EndpointSet()
    found.update(EndpointConfig(url=f"http://10.0.0.{at}:80", service="s") for at in range(3))
    for endpoint in found.all:
        endpoint.health.mark_up()
    loaded, other, last = found.all
    assert found.candidates((), "s", "poet") == ([loaded, other, last], False), "the name of no adapter we know"
    loaded.report.adapters = last.report.adapters = frozenset({"poet"})
    assert found.candidates((), "s", "poet") == ([loaded, last], False)
    assert found.candidates((loaded,), "s", "poet") == ([last], False)
    last.health.mark_draining()
    assert found.candidates((loaded,), "s", "poet") == ([], True), "others would respond with 404"
    assert found.candidates((), "s", "base") == ([loaded, other], False)
    assert found.candidates((), "other", "poet") == ([], True)
