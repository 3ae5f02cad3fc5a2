"""Revisions side by side: what the router counts of each, and how little of it a stranger can make it keep."""

import json
import math
import random

import msgspec
import pytest
from router_support.engine import MockEngine
from router_support.serving import eventually, serving

from blade_protocol import paths
from blade_protocol.routing import EndpointConfig, RouterConfig
from blade_protocol.signals import Differences, RevisionSignals, RouterSignals
from blade_router.statistics.revisions import (
    BATCH_REQUESTS,
    MAX_REVISIONS,
    WARM_UP,
    Comparison,
    finish_reason,
    merge_revisions,
)

DRAWS = random.Random(3)


def of(comparison: Comparison, revision: str) -> RevisionSignals:
    return next(each for each in comparison.signals() if each.revision == revision)


def respond(
    comparison: Comparison, place: int, now: float, ttft: float, tpot: float = 0.01, tokens: int = 11, end: bytes = b""
) -> None:
    comparison.succeeded(place, now, now + ttft, now + ttft + tpot * (tokens - 1), True, tokens, end)


def test_differences_are_of_mean_logarithms_batch_by_batch() -> None:
    comparison = Comparison({"new": 50, "old": 50}, 0.0)
    for step in range(4 * BATCH_REQUESTS):
        now = WARM_UP + step
        slow = 10.0 if step > 2 * BATCH_REQUESTS else 1.0  # both alike: it is in no difference
        respond(comparison, 0, now, 0.3 * slow)
        respond(comparison, 1, now, 0.2 * slow, tpot=0.02)
    new, old = of(comparison, "new"), of(comparison, "old")
    assert new.ttft.batches == 4
    assert new.ttft.total / 4 == pytest.approx(math.log(1.5))
    assert new.ttft.squares == pytest.approx(4 * math.log(1.5) ** 2)
    assert new.tpot.total / new.tpot.batches == pytest.approx(-math.log(2.0))
    assert old.ttft.total == pytest.approx(-new.ttft.total)
    assert new.unary.batches == 0


def test_a_batch_needs_requests_of_each_and_a_second() -> None:
    comparison = Comparison({"new": 5, "old": 95}, 0.0)
    for _ in range(100):
        respond(comparison, 1, WARM_UP, 0.2)
    for _ in range(100):
        respond(comparison, 0, WARM_UP + 0.1, 0.2)
    assert of(comparison, "new").ttft.batches == 0, "they are all of one moment"
    respond(comparison, 0, WARM_UP + 2.0, 0.2)
    assert of(comparison, "new").ttft.batches == 1
    for step in range(50):
        respond(comparison, 1, WARM_UP + 3.0 + step, 0.2)
    assert of(comparison, "new").ttft.batches == 1


def test_latencies_of_the_warm_up_do_not_count_and_errors_do() -> None:
    comparison = Comparison({"new": 50, "old": 50}, 100.0)
    for step in range(2 * BATCH_REQUESTS):
        for place in (0, 1):
            respond(comparison, place, 100.0 + step / 2, 0.2)
        comparison.failed(0)
    new = of(comparison, "new")
    assert (new.requests, new.errors, new.ttft.batches) == (4 * BATCH_REQUESTS, 2 * BATCH_REQUESTS, 0)


def test_latencies_go_on_with_other_weights_and_counts_do_not() -> None:
    first = Comparison({"new": 5, "old": 95}, 0.0)
    for step in range(BATCH_REQUESTS + 3):
        for place in (0, 1):
            respond(first, place, WARM_UP + step, 0.2)
    now = WARM_UP + 100.0
    second = Comparison({"new": 50, "old": 50}, now, first)
    assert (of(second, "new").ttft.batches, of(second, "new").requests) == (1, 0)
    for step in range(BATCH_REQUESTS - 1):
        for place in (0, 1):
            respond(second, place, now + step, 0.2)
            respond(second, place, now + WARM_UP + step, 0.2)
    assert of(second, "new").ttft.batches == 1, "neither what the open batch had nor the warm-up counts"
    third = Comparison({"newer": 50, "old": 50}, now, second)
    assert of(third, "newer").ttft.batches == 0


def test_lengths_and_finish_reasons_are_few() -> None:
    comparison = Comparison({"new": 50, "old": 50}, 0.0)
    for tokens in (1, 3, 4, 255, 20_000, 10**12):
        respond(comparison, 0, 0.0, 0.1, tokens=tokens)
    for number in range(100):
        end = b'data: {"choices": [{"delta": {}, "finish_reason": "mine_%s"}]}' % (b"x" * (number % 20))
        respond(comparison, 0, 0.0, 0.1, tokens=0, end=end)
    new = of(comparison, "new")
    assert new.lengths == (2, 1, 0, 1, 0, 0, 0, 2)
    assert new.finish_reasons == {"other": 100}


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (b'{"choices":[{"finish_reason":"stop"}]}', "stop"),
        (b'{"finish_reason": null}\n\ndata: {"finish_reason" : "length"}\n\ndata: [DONE]\n\n', "length"),
        (b'{"content":"\\"finish_reason\\":\\"stop\\"","finish_reason":"tool_calls"}', "tool_calls"),
        (b'{"content":"\\"finish_reason\\":\\"stop\\""}', None),
        (b'{"finish_reason":"no_such"}', "other"),
        (b"", None),
    ],
)
def test_the_finish_reason_is_read_from_the_end(end: bytes, reason: str | None) -> None:
    assert finish_reason(end) == reason


def test_only_so_many_revisions_are_kept() -> None:
    comparison = Comparison({f"r{number}": number for number in range(100)}, 0.0)
    assert len(comparison.signals()) == MAX_REVISIONS
    assert comparison.begin("r99") is not None
    assert comparison.begin("r1") is None
    assert comparison.begin("never heard of") is None


def test_only_the_first_outcome_of_an_attempt_counts() -> None:
    comparison = Comparison({"new": 1}, 0.0)
    attempt = comparison.begin("new")
    assert attempt is not None
    attempt.failed()
    attempt.failed()
    attempt.succeeded(True, 5, b"")
    assert (of(comparison, "new").requests, of(comparison, "new").errors) == (1, 1)


def some_signals(weight: float = 5.0) -> RevisionSignals:
    def differences() -> Differences:
        return Differences(batches=DRAWS.randrange(9), total=DRAWS.random(), squares=DRAWS.random())

    return RevisionSignals(
        revision="new",
        weight=weight,
        requests=DRAWS.randrange(100),
        errors=DRAWS.randrange(9),
        ttft=differences(),
        tpot=differences(),
        unary=differences(),
        lengths=tuple(DRAWS.randrange(9) for _ in range(8)),
        finish_reasons={"stop": DRAWS.randrange(9), DRAWS.choice(["length", "other"]): 1},
    )


def test_processes_are_added_up_in_any_order() -> None:
    one, two, three = some_signals(), some_signals(), some_signals()
    (left,) = merge_revisions(merge_revisions((one,), (two,)), (three,))
    (right,) = merge_revisions((three,), merge_revisions((two,), (one,)))
    assert left.requests == right.requests == one.requests + two.requests + three.requests
    assert left.lengths == right.lengths == tuple(map(sum, zip(one.lengths, two.lengths, three.lengths, strict=True)))
    assert left.finish_reasons == right.finish_reasons
    assert left.ttft.batches == one.ttft.batches + two.ttft.batches + three.ttft.batches
    assert left.tpot.squares == pytest.approx(right.tpot.squares)


def test_a_process_with_other_weights_is_not_added() -> None:
    merged = merge_revisions((some_signals(5.0),), (some_signals(25.0),))
    assert [each.weight for each in merged] == [5.0, 25.0]
    for number in range(100):
        merged = merge_revisions(merged, (some_signals(number / 100),))
    assert len(merged) <= 2 * MAX_REVISIONS


# with real sockets


class Answering(MockEngine):
    """Its streams say why they end."""

    def event(self, index: int) -> bytes:
        if index < self.tokens - 1:
            return super().event(index)
        choice = {"index": 0, "delta": {}, "finish_reason": "length"}
        return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"


async def test_a_router_counts_what_each_revision_answers() -> None:
    async with Answering("old", tokens=6) as old, Answering("new", tokens=6) as new:
        endpoints = (EndpointConfig(url=old.url, revision="old"), EndpointConfig(url=new.url, revision="new"))
        config = RouterConfig(policy="round-robin", endpoints=endpoints, canary={"old": 75, "new": 25})
        async with serving(wait=False, endpoints=(), health_interval=0.05) as router:
            router.router.apply(config)
            await eventually(lambda: router.router.endpoints.usable_count() == 2)

            async def revisions() -> dict[str, RevisionSignals]:
                response = await router.admin.get(paths.INTERNAL_SIGNALS)
                found = msgspec.json.decode(response.content, type=RouterSignals).revisions
                return {each.revision: each for each in found}

            for number in range(40):
                response = await router.chat(stream=number % 3 == 0)
                assert response.status_code == 200
            found = await revisions()
            assert (found["old"].requests, found["new"].requests) == (30, 10)
            assert (found["old"].weight, found["new"].weight) == (75, 25)
            assert found["old"].finish_reasons["length"] + found["new"].finish_reasons["length"] == 14
            assert sum(found["old"].lengths) + sum(found["new"].lengths) == 40

            new.mode = "status"
            for _ in range(4):
                response = await router.chat()
                assert response.status_code == 200, "the other revision answers what this one fails"
            after = await revisions()
            assert after["new"].errors >= 1
            assert after["old"].errors == 0
            new.mode = "break"
            for _ in range(8):
                await router.chat(stream=True)
            assert (await revisions())["new"].errors > after["new"].errors
            router.router.apply(msgspec.structs.replace(config, canary={"old": 50, "new": 50}))
            assert (await revisions())["new"].requests == 0, "other weights: counting begins anew"
            router.router.apply(msgspec.structs.replace(config, canary={}))
            assert await revisions() == {}


async def test_a_client_that_is_wrong_or_leaves_is_no_error_of_a_revision() -> None:
    async with MockEngine("new", mode="status", status=400) as new:
        config = RouterConfig(endpoints=(EndpointConfig(url=new.url, revision="new"),), canary={"new": 100})
        async with serving(wait=False, endpoints=()) as router:
            router.router.apply(config)
            await eventually(lambda: router.router.endpoints.usable_count() == 1)
            await router.chat()
            comparison = router.router.metrics.comparison
            assert comparison is not None
            assert comparison.signals()[0].errors == 0
            new.mode = "draining"
            await router.chat()
            assert comparison.signals()[0].errors == 0
