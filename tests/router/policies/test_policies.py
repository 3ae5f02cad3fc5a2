"""Which endpoint is chosen: what holds for every policy, and those that use load only."""

import gc
import random
from collections import Counter
from collections.abc import Callable

import pytest
from router_support.engine import MockEngine
from router_support.policies import LONG, REQUEST, end, endpoints, policy, send, serve
from router_support.serving import serving
from router_support.simulation import chat_request, group_text

from blade_protocol.routing import PolicyName
from blade_router.config.parsing import POLICIES
from blade_router.policies import Choice, LeastRequest, Policy, RoundRobin

# those that use load only


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
        send(chooser.choose(four, chat_request(group_text(group, 4))))
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
    send(chooser.choose(two, chat_request("long", max_tokens=1000)))
    short = []
    for _ in range(20):
        short.append(chooser.choose(two, chat_request("short", max_tokens=10)))
        send(short[-1])
    assert two[0].in_flight == 1
    assert two[1].in_flight == 20
    for choice in short:
        end(choice)
    assert two[1].tokens_in_flight == 0


@pytest.mark.parametrize("name", ["least-request", "least-token", "auto", "power-of-two"])
async def test_a_new_endpoint_starts_slowly(name: PolicyName) -> None:
    # at one moment: an engine that leaves a request without a response for long is taken for a slow one
    chooser, two = policy(name, clock=lambda: 100.0), endpoints(2)
    two[0].health.weight = 0.2
    for group in range(60):
        send(chooser.choose(two, chat_request(group_text(group, 1))))
    assert two[0].in_flight < 20 < two[1].in_flight


@pytest.mark.parametrize("make", [RoundRobin, LeastRequest])
async def test_a_shrinking_list_is_no_problem(make: Callable[[], Policy]) -> None:
    policy, three = make(), endpoints(3)
    for size in (3, 3, 1, 2, 1, 3):
        assert policy.choose(three[:size], REQUEST).endpoint in three[:size]


@pytest.mark.parametrize("name", ["auto", "round-robin"])
async def test_sequential_requests_spread_over_idle_engines(name: PolicyName) -> None:
    async with MockEngine("a") as a, MockEngine("b") as b, MockEngine("c") as c:
        async with serving(a, b, c, policy=name) as router:
            for _ in range(12):
                await router.chat()
    assert min(len(a.received), len(b.received), len(c.received)) >= (4 if name == "round-robin" else 1)


# all of them


@pytest.mark.parametrize("name", POLICIES)
async def test_every_policy_balances_its_counters(name: PolicyName) -> None:
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
        send(choice)
        open_choices.append(choice)
        if len(open_choices) > 10:
            over = open_choices.pop(rng.randrange(10))
            if rng.random() < 0.8:
                over.first_byte()
            end(over)
        if step == 200:
            chooser.removed(three[2])
    for choice in open_choices:
        end(choice)
    for endpoint in three:
        assert (endpoint.in_flight, endpoint.backlog_tokens, endpoint.tokens_in_flight) == (0, 0, 0)


@pytest.mark.parametrize("name", POLICIES)
async def test_a_choice_that_has_ended_keeps_no_other_endpoint(name: PolicyName) -> None:
    choice = policy(name, cost="math:dist").choose(endpoints(3), LONG)
    send(choice)
    end(choice)  # records of requests keep it
    assert not any(each for each in gc.get_referents(choice) if isinstance(each, list | tuple))


@pytest.mark.parametrize("name", POLICIES)
async def test_every_policy_explains_without_deciding(name: PolicyName) -> None:
    chooser, three = policy(name, cost="math:dist"), endpoints(3)
    for _ in range(5):
        serve(chooser, three, LONG)
    scores = chooser.scores(three, LONG)
    assert set(scores) == {"0", "1", "2"}
    rehearsed = {chooser.dry_run_copy().choose(three, LONG).endpoint.name for _ in range(5)}
    assert len(rehearsed) == 1 or name == "random" or name == "power-of-two"


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "external"])
def test_names(name: PolicyName) -> None:
    chooser = policy(name)
    assert chooser.name == name
    assert chooser.choose(endpoints(1), REQUEST).reason.startswith("auto" if name == "session" else name)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "external"])
async def test_policies_say_whether_the_adapter_must_be_there(name: PolicyName) -> None:
    verse = chat_request(group_text(1, 2), model="poet")
    for canary in (None, {"1": 0.5}):
        assert policy(name, canary).adapter(verse) == (None if name == "lora-affinity" else "poet")


async def test_an_engine_that_must_read_an_adapter_first_is_the_dearer_by_that() -> None:
    chooser, two = policy("auto"), endpoints(2)
    two[0].report.update(adapters=frozenset({"law"}), adapter_seconds={"law": 0.3})
    two[1].report.update(adapters=frozenset({"law"}))
    law = chat_request("hello", model="law")
    scores = chooser.scores(two, law)
    assert scores["0"]["score"] - scores["1"]["score"] == pytest.approx(300, abs=10)
    for _ in range(10):
        assert serve(chooser, two, law) == "1"
    scores = chooser.scores(two, chat_request("hello", model="m"))
    assert abs(scores["0"]["score"] - scores["1"]["score"]) < 100, "other requests do not care"
