"""Which endpoint is chosen, by each policy."""

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from router_support.engine import MockEngine
from router_support.serving import serving
from router_support.simulation import chat_request, group_text

from blade_protocol.routing import EndpointConfig, PolicyName
from blade_router.config import POLICIES
from blade_router.endpoints import Endpoint, EndpointSet
from blade_router.fields import RoutingFields
from blade_router.policies import Canary, Choice, LeastRequest, Policy, PolicyOptions, RoundRobin, make_policy
from blade_router.policies.external import EndpointView, RequestView
from blade_router.policies.load import TOLD_SECONDS, requests_on
from blade_router.prefix_index import PrefixIndex
from blade_router.request import ClientRequest

REQUEST = ClientRequest("POST", "/v1/completions", RoutingFields(), b"", b"id")
LONG = chat_request(group_text(1, 16))
OTHER = chat_request(group_text(2, 16))


def endpoints(count: int, revisions: Sequence[str] = ("",)) -> list[Endpoint]:
    found = EndpointSet()
    found.update(
        EndpointConfig(url=f"http://10.0.0.{at}:80", name=str(at), revision=revisions[at % len(revisions)])
        for at in range(count)
    )
    return found.all


def policy(name: PolicyName, canary: dict[str, float] | None = None, **options: Any) -> Policy:
    return make_policy(name, PolicyOptions(**{"index": PrefixIndex(), "rng": random.Random(1), **options}), canary)


def serve(policy: Policy, candidates: Sequence[Endpoint], request: ClientRequest) -> str:
    """One request from beginning to end; who had it."""
    choice = policy.choose(candidates, request)
    choice.sent()
    choice.first_byte()
    choice.ended(None)
    return choice.endpoint.name


def with_session(session: str) -> ClientRequest:
    return ClientRequest("POST", "/", RoutingFields(), b"", b"id", headers=[(b"x-session-id", session.encode())])


# those that look at load only


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


@pytest.mark.parametrize("name", ["least-request", "least-token", "auto", "prefix", "kv-aware"])
async def test_a_burst_is_evened_out(name: PolicyName) -> None:
    chooser, four = policy(name), endpoints(4)
    for group in range(40):
        chooser.choose(four, chat_request(group_text(group, 4))).sent()
    assert [endpoint.in_flight for endpoint in four] == [10] * 4


async def test_random_is_everywhere() -> None:
    chooser, four = policy("random"), endpoints(4)
    counts = Counter(chooser.choose(four, REQUEST).endpoint.name for _ in range(400))
    assert set(counts) == {"0", "1", "2", "3"}
    assert max(counts.values()) < 140


async def test_power_of_two_avoids_the_busiest() -> None:
    chooser, three = policy("power-of-two"), endpoints(3)
    three[1].in_flight = 5
    assert {chooser.choose(three, REQUEST).endpoint.name for _ in range(50)} == {"0", "2"}
    assert chooser.choose(three[1:2], REQUEST).endpoint is three[1]


async def test_least_token_counts_prompts_and_limits() -> None:
    chooser, two = policy("least-token"), endpoints(2)
    chooser.choose(two, chat_request("long", max_tokens=1000)).sent()
    short = []
    for _ in range(20):
        short.append(chooser.choose(two, chat_request("short", max_tokens=10)))
        short[-1].sent()
    assert two[0].in_flight == 1
    assert two[1].in_flight == 20
    for choice in short:
        choice.ended(None)
    assert two[1].tokens_in_flight == 0


@pytest.mark.parametrize("name", ["least-request", "least-token", "auto", "power-of-two"])
async def test_a_new_endpoint_starts_slowly(name: PolicyName) -> None:
    chooser, two = policy(name), endpoints(2)
    two[0].weight = 0.2
    for group in range(60):
        chooser.choose(two, chat_request(group_text(group, 1))).sent()
    assert two[0].in_flight < 20 < two[1].in_flight


@pytest.mark.parametrize("make", [RoundRobin, LeastRequest])
async def test_a_shrinking_list_is_no_problem(make: Callable[[], Policy]) -> None:
    policy, three = make(), endpoints(3)
    for size in (3, 3, 1, 2, 1, 3):
        assert policy.choose(three[:size], REQUEST).endpoint in three[:size]


# all of them


@pytest.mark.parametrize("name", POLICIES)
async def test_every_policy_keeps_its_books(name: PolicyName) -> None:
    chooser = policy(name, cost="math:dist")  # a function that always fails: auto decides
    three = endpoints(3)
    rng = random.Random(3)
    open_choices: list[Choice] = []
    for step in range(300):
        candidates = rng.sample(three, rng.randint(1, 3))
        choice = chooser.choose(candidates, chat_request(group_text(step % 7, 3), user=f"u{step % 5}"))
        assert choice.endpoint in candidates
        assert choice.reason.isascii()
        assert choice.reason.isprintable()
        choice.sent()
        open_choices.append(choice)
        if len(open_choices) > 10:
            over = open_choices.pop(rng.randrange(10))
            if rng.random() < 0.8:
                over.first_byte()
            over.ended(None)
        if step == 200:
            chooser.removed(three[2])
    for choice in open_choices:
        choice.ended(None)
    for endpoint in three:
        assert (endpoint.in_flight, endpoint.backlog_tokens, endpoint.tokens_in_flight) == (0, 0, 0)


@pytest.mark.parametrize("name", POLICIES)
async def test_every_policy_explains_without_deciding(name: PolicyName) -> None:
    chooser, three = policy(name, cost="math:dist"), endpoints(3)
    for _ in range(5):
        serve(chooser, three, LONG)
    scores = chooser.scores(three, LONG)
    assert set(scores) == {"0", "1", "2"}
    rehearsed = {chooser.rehearsal().choose(three, LONG).endpoint.name for _ in range(5)}
    assert len(rehearsed) == 1 or name == "random" or name == "power-of-two"


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "external"])
def test_names(name: PolicyName) -> None:
    chooser = policy(name)
    assert chooser.name == name
    assert chooser.choose(endpoints(1), REQUEST).reason.startswith("auto" if name == "session" else name)


# those that know prompts


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


async def test_auto_leaves_a_warm_endpoint_that_is_too_busy() -> None:
    chooser, two = policy("auto"), endpoints(2)
    home = serve(chooser, two, LONG)
    warm, cold = (two[0], two[1]) if home == "0" else (two[1], two[0])
    warm.in_flight = 5
    assert chooser.choose(two, LONG).endpoint is warm
    warm.in_flight = 60
    assert chooser.choose(two, LONG).endpoint is cold


async def test_auto_sees_the_backlog_and_the_first_byte_takes_it_away() -> None:
    chooser, two = policy("auto"), endpoints(2)
    huge = chooser.choose(two, chat_request(group_text(9, 2000)))
    huge.sent()
    busy = huge.endpoint
    assert busy.backlog_tokens > 100_000
    other = two[1 - two.index(busy)]
    other.in_flight = 3
    small = chat_request(group_text(3, 2))
    assert chooser.choose(two, small).endpoint is other
    huge.first_byte()
    assert busy.backlog_tokens == 0
    assert chooser.choose(two, small).endpoint is busy


async def test_auto_avoids_a_full_kv_cache() -> None:
    chooser, two = policy("auto"), endpoints(2)
    two[0].kv_usage, two[1].kv_usage = 0.99, 0.3
    two[0].told_at = two[1].told_at = time.monotonic()
    assert {serve(chooser, two, chat_request(group_text(group, 3))) for group in range(10)} == {"1"}


async def test_auto_gives_a_larger_engine_more() -> None:
    chooser, two = policy("auto"), endpoints(2)
    two[0].capacity, two[1].capacity = 96, 32
    two[0].told_at = two[1].told_at = time.monotonic()
    for group in range(80):
        chooser.choose(two, chat_request(group_text(group, 2))).sent()
    assert 50 <= two[0].in_flight <= 70


async def test_auto_forgets_what_an_engine_told_long_ago() -> None:
    chooser, two = policy("auto"), endpoints(2)
    for endpoint in two:
        endpoint.told_at = time.monotonic() - TOLD_SECONDS
    two[0].kv_usage, two[0].capacity = 0.99, 1
    two[1].kv_usage, two[1].capacity = 0.3, 96
    for group in range(80):
        chooser.choose(two, chat_request(group_text(group, 2))).sent()
    assert 35 <= two[0].in_flight <= 45


async def test_auto_counts_what_other_routers_sent() -> None:
    (one,) = endpoints(1)
    one.in_flight, one.running, one.waiting, one.told_at = 2, 8, 4, 100.0
    assert requests_on(one, 100.0, 2.0) == 12
    assert requests_on(one, 103.0, 2.0) == 7
    assert requests_on(one, 107.0, 2.0) == 2  # older than three reports: no longer believed
    one.in_flight = 20
    assert requests_on(one, 100.0, 2.0) == 20


async def test_two_routers_find_the_same_home() -> None:
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


async def test_auto_goes_only_where_the_adapter_is() -> None:
    chooser, three = policy("auto"), endpoints(3)
    three[1].adapters = frozenset({"poet"})
    three[1].in_flight = 50
    verse = chat_request(group_text(1, 2), model="poet")
    assert {serve(chooser, three, verse) for _ in range(5)} == {"1"}
    three[1].in_flight = 0
    assert {serve(chooser, three, chat_request(group_text(group, 2))) for group in range(9)} == {"0", "1", "2"}


async def test_lora_affinity_is_a_ladder() -> None:
    chooser, three = policy("lora-affinity"), endpoints(3)
    three[0].adapters = frozenset({"poet", "lawyer"})
    three[1].adapters = frozenset({"doctor", "lawyer"})  # full
    verse = chat_request(group_text(1, 2), model="poet")
    choice = chooser.choose(three, verse)
    assert choice.endpoint is three[0]
    assert choice.reason.endswith("adapter=1")
    three[0].in_flight = 9
    choice = chooser.choose(three, verse)
    assert choice.endpoint is three[2]  # has room
    assert choice.reason.endswith("adapter=0.6")
    choice = chooser.choose(three, verse)
    assert choice.reason.endswith("adapter=0.8")  # and is loading it by now
    assert chooser.scores(three, verse)["1"]["adapter"] == 0


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
        chooser.choose(four, with_session("popular")).sent()
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
    news = [endpoint for endpoint in four if endpoint.revision == "new"]
    assert chooser.choose(news, REQUEST).endpoint in news


async def test_canary_leaves_other_revisions_what_load_would_give_them() -> None:
    chooser, six = policy("least-request", {"new": 1, "old": 3}), endpoints(6, ["old", "new", "lost"])
    counts = Counter(chooser.choose(six, REQUEST).endpoint.revision for _ in range(120))
    assert counts == {"lost": 40, "new": 20, "old": 60}


async def test_canary_with_weights_for_nobody_is_no_canary() -> None:
    chooser = Canary(LeastRequest(), {"x": 0, "y": 0})
    four = endpoints(4, ["x", "y"])
    assert Counter(chooser.choose(four, REQUEST).endpoint.revision for _ in range(40)) == {"x": 20, "y": 20}


# external


def by_name(endpoint: EndpointView, request: RequestView) -> float:
    """A cost function of a user: endpoint 2 unless the prompt is cached elsewhere."""
    return -endpoint.cached_tokens - (endpoint.name == "2") + request.prompt_tokens * 0


def failing(endpoint: EndpointView, request: RequestView) -> float:
    raise RuntimeError("no such thing")


def nothing(endpoint: EndpointView, request: RequestView) -> float:
    return float("nan")


async def test_external_asks_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("math.dist", by_name)
    chooser, three = policy("external", cost="math:dist"), endpoints(3)
    choice = chooser.choose(three, LONG)
    assert choice.endpoint is three[2]
    assert choice.reason == "external cost=-1 prefix=0/16"
    choice.sent()
    assert chooser.scores(three, LONG)["2"]["cost"] == -1025


@pytest.mark.parametrize("cost", [failing, nothing])
async def test_external_survives_its_function(
    cost: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("math.dist", cost)
    chooser, three = policy("external", cost="math:dist"), endpoints(3)
    with caplog.at_level(logging.ERROR):
        reasons = {chooser.choose(three, LONG).reason.split(" prefix")[0] for _ in range(20)}
    assert reasons == {"external failed auto"}
    assert len(caplog.records) == 1


@pytest.mark.parametrize("cost", ["", "nowhere", "no.such.module:f", "math:nothing", "math:pi"])
def test_external_needs_a_function(cost: str) -> None:
    with pytest.raises(ValueError, match=r"it needs --cost|cannot be imported|is not a function"):
        policy("external", cost=cost)


# in a router


@pytest.mark.parametrize("name", ["auto", "round-robin"])
async def test_sequential_requests_spread_over_idle_engines(name: PolicyName) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, MockEngine("c") as c:
        async with serving(a, b, c, policy=name) as router:
            for _ in range(12):
                await router.chat()
    assert len(a.received) == len(b.received) == len(c.received) == 4


async def test_only_who_has_the_adapter_is_asked_for_it() -> None:
    found = EndpointSet()
    found.update(EndpointConfig(url=f"http://10.0.0.{at}:80", service="s") for at in range(3))
    for endpoint in found.all:
        endpoint.mark_up()
    holder, other, last = found.all
    assert found.candidates((), "s", "poet") == ([holder, other, last], False), "the name of no adapter we know"
    holder.adapters = last.adapters = frozenset({"poet"})
    assert found.candidates((), "s", "poet") == ([holder, last], False)
    assert found.candidates((holder,), "s", "poet") == ([last], False)
    last.mark_draining()
    assert found.candidates((holder,), "s", "poet") == ([], True), "others would answer 404"
    assert found.candidates((), "s", "base") == ([holder, other], False)
    assert found.candidates((), "other", "poet") == ([], True)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "external"])
async def test_policies_say_whether_the_adapter_must_be_there(name: PolicyName) -> None:
    verse = chat_request(group_text(1, 2), model="poet")
    for canary in (None, {"1": 0.5}):
        assert policy(name, canary).adapter(verse) == (None if name == "lora-affinity" else "poet")
