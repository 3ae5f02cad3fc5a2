"""Circuit breakers, the retry budget, slow start, and attribution of a 500."""

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, serving

from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.breaker import (
    BASE_EJECTION_SECONDS,
    CONSECUTIVE_FAILURES,
    MAX_RETRY_AFTER,
    UNATTRIBUTED_PER_FAILURE,
    Breaker,
)
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_health import SLOW_START_MIN_WEIGHT, attribute_failures
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.endpoints.retry_budget import (
    BUDGET_SHARE,
    MAX_BACKOFF,
    MIN_RETRIES_PER_SECOND,
    WINDOW,
    RetryBudget,
    retry_after_seconds,
)
from blade_router.http.upstream.errors import ConnectFailed, ConnectionLost, FirstByteTimeout


def endpoints(count: int, **settings: Any) -> EndpointSet:
    """Make ``count`` endpoints, all up."""
    found = EndpointSet(**settings)
    found.update(EndpointConfig(url=f"http://10.0.0.{number}:80") for number in range(count))
    for endpoint in found.all:
        endpoint.health.mark_up()
    return found


def break_down(endpoint: Endpoint) -> None:
    for _ in range(CONSECUTIVE_FAILURES):
        endpoint.health.record_failure("boom", ConnectionLost("boom"))


def by_name(router: Running, name: str) -> Endpoint:
    return next(endpoint for endpoint in router.router.endpoints.all if endpoint.name == name)


# breaker


def test_breaker_opens_allows_one_probe_and_closes() -> None:
    breaker = Breaker()
    assert [breaker.fail(100.0) for _ in range(CONSECUTIVE_FAILURES)] == [0.0, 0.0, BASE_EJECTION_SECONDS]
    assert (breaker.state(100.0), breaker.allows(100.0)) == ("open", False)
    now = 100.0 + BASE_EJECTION_SECONDS
    assert (breaker.state(now), breaker.allows(now)) == ("half-open", True)
    assert breaker.begin_probe()
    assert not breaker.allows(now), "one at a time"
    breaker.end_probe()
    assert breaker.allows(now), "a probe without a result makes room for another"
    assert breaker.succeed()
    assert (breaker.state(now), breaker.failures, breaker.begin_probe()) == ("closed", 0, False)


def test_failed_probe_opens_it_for_twice_as_long() -> None:
    breaker = Breaker()
    now = 0.0
    for _ in range(CONSECUTIVE_FAILURES):
        breaker.fail(now)
    for seconds in (2 * BASE_EJECTION_SECONDS, 4 * BASE_EJECTION_SECONDS):
        now = breaker.open_until
        assert breaker.begin_probe()
        assert breaker.fail(now) == seconds
        breaker.end_probe()
        assert not breaker.allows(now)


@given(st.lists(st.sampled_from(["fail", "succeed", "unattributed", "wait"])))
def test_breaker_is_never_stuck(events: list[str]) -> None:
    breaker, now = Breaker(), 0.0
    for event in events:
        now += 0.1 if event != "wait" else 40.0
        if event == "fail":
            breaker.fail(now)
        elif event == "unattributed":
            breaker.fail_unattributed(now)
        elif event == "succeed":
            breaker.succeed()
            assert breaker.closed
    assert breaker.allows(now + MAX_RETRY_AFTER)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_at_most_half_of_a_service_is_ejected(count: int) -> None:
    found = endpoints(count)
    for endpoint in found.all:
        break_down(endpoint)
    assert found.usable_count() == count - count // 2
    assert not found.candidates()[1], "no panic: the rest stays in"


def test_services_are_counted_apart() -> None:
    found = EndpointSet()
    found.update(EndpointConfig(url=f"http://10.0.0.{n}:80", service="ab"[n % 2]) for n in range(4))
    for endpoint in found.all:
        endpoint.health.mark_up()
        break_down(endpoint)
    assert (found.usable_count("a"), found.usable_count("b")) == (1, 1)


@pytest.mark.parametrize("error", [ConnectFailed("slow"), ConnectionLost("x"), FirstByteTimeout("x"), None])
def test_each_kind_of_failure_counts(error: Any) -> None:
    endpoint = endpoints(2).all[0]
    for _ in range(CONSECUTIVE_FAILURES):
        endpoint.health.record_failure("boom", error)
    assert endpoint.health.breaker.state(time.monotonic()) == "open"


async def test_4xx_never_counts() -> None:
    async with (
        MockEngine("a", mode="status", status=429) as a,
        MockEngine("b") as b,
        serving(a, b, policy="round-robin") as router,
    ):
        for _ in range(8):
            await router.chat()
        assert by_name(router, "a").health.failures == 0
        assert len(a.received) == 4, "it is still chosen, and its responses are passed on"


async def test_half_open_endpoint_gets_one_probe_at_a_time() -> None:
    permits = asyncio.Semaphore(0)
    async with MockEngine("good") as good, MockEngine("bad", gate=permits) as bad, serving(good, bad) as router:
        endpoint = by_name(router, "bad")
        break_down(endpoint)
        endpoint.health.breaker.open_until = time.monotonic()
        pending = [asyncio.create_task(router.chat()) for _ in range(12)]
        await eventually(lambda: sum(each.done() for each in pending) == 11)
        assert len(bad.received) == 1
        assert await router.metric('blade_router_endpoint_breaker_state{endpoint="bad"}') == 1
        permits.release()
        await asyncio.gather(*pending)
        assert (await router.status())["endpoints"]["bad"]["breaker"] == "closed"


async def test_a_stream_that_has_closed_the_breaker_is_no_probe_any_more() -> None:
    """The breaker may open again before that stream ends: the end must not be taken for that of the next probe."""
    permits = asyncio.Semaphore(1)
    async with MockEngine("a", gate=permits, tokens=2) as engine, serving(engine) as router:
        (endpoint,) = router.router.endpoints.all
        breaker = endpoint.health.breaker

        def make_half_open() -> None:
            for _ in range(CONSECUTIVE_FAILURES):
                breaker.fail(time.monotonic())
            breaker.open_until = time.monotonic()

        make_half_open()
        first = asyncio.create_task(router.chat(stream=True))
        await eventually(lambda: breaker.closed and engine.active == 1, "its first event has closed the breaker")
        make_half_open()
        second = asyncio.create_task(router.chat(stream=True))
        await eventually(lambda: engine.active == 2, "it probes again")
        assert breaker.probing
        permits.release()
        await first
        assert breaker.probing, "the second stream has had no event yet"
        permits.release()
        permits.release()
        await second
        assert breaker.closed


async def test_client_that_disconnects_frees_the_probe() -> None:
    async with MockEngine("good") as good, MockEngine("bad", gate=asyncio.Semaphore(0)) as bad:
        async with serving(good, bad) as router:
            endpoint = by_name(router, "bad")
            break_down(endpoint)
            endpoint.health.breaker.open_until = time.monotonic()
            pending = [asyncio.create_task(router.chat()) for _ in range(3)]
            await eventually(lambda: bad.active == 1)
            for each in pending:
                each.cancel()
            await eventually(lambda: endpoint.in_flight == 0)
            assert not endpoint.health.breaker.probing
            assert endpoint.health.breaker.state(time.monotonic()) == "half-open"


# attribution of a 500


def test_5xx_counts_where_another_engine_succeeded() -> None:
    first, second = endpoints(2).all
    attribute_failures([first.health], answered=True)
    attribute_failures([second.health], answered=False)
    assert (first.health.failures, second.health.failures) == (1, 0)
    for _ in range(UNATTRIBUTED_PER_FAILURE - 1):
        attribute_failures([second.health], answered=False)
    assert second.health.failures == 1


async def test_poisonous_request_ejects_no_endpoint() -> None:
    """A client repeats a request to which every engine returns 500: others must not notice."""
    engines = [MockEngine(name, mode="status", status=500) for name in "abcd"]
    async with engines[0], engines[1], engines[2], engines[3], serving(*engines) as router:
        for _ in range(3):  # what the OpenAI client does by itself
            assert (await router.chat()).status_code == 500
        assert sum(len(engine.received) for engine in engines) == 9
        assert router.router.endpoints.usable_count() == 4
        for engine in engines:
            engine.mode = "ok"
        assert (await router.chat()).status_code == 200
        assert await router.metric("blade_router_retries_exhausted_total") == 0


async def test_engine_that_returns_500_where_others_do_not_is_ejected() -> None:
    async with MockEngine("good") as good, MockEngine("bad", mode="status") as bad, serving(good, bad) as router:
        while by_name(router, "bad").health.breaker.closed:
            assert (await router.chat()).status_code == 200
        assert len(bad.received) == CONSECUTIVE_FAILURES


# retries


def test_retry_budget_follows_the_traffic() -> None:
    traffic = 100
    budget = RetryBudget(lambda: traffic)
    allowed = 0
    while budget.take(1000.0):
        allowed += 1
    assert allowed == MIN_RETRIES_PER_SECOND * WINDOW + BUDGET_SHARE * 100
    traffic += 500
    assert sum(budget.take(1000.0) for _ in range(500)) == BUDGET_SHARE * 500
    assert budget.exhausted == 1 + 400
    assert budget.take(1000.0 + WINDOW + 1), "it is a sliding window"


async def test_failing_fleet_gets_no_retry_storm() -> None:
    engines = [MockEngine(name, mode="status", status=500) for name in "abc"]
    async with engines[0], engines[1], engines[2], serving(*engines) as router:
        statuses = [(await router.chat()).status_code for _ in range(60)]
        sent = sum(len(engine.received) for engine in engines)
        assert set(statuses) == {500}
        assert sent <= 60 + MIN_RETRIES_PER_SECOND * WINDOW + BUDGET_SHARE * 61 + 1
        assert await router.metric("blade_router_retries_exhausted_total") > 0


@pytest.mark.interpreted
async def test_engine_that_dies_costs_no_budget() -> None:
    gate = asyncio.Semaphore(0)
    async with (
        MockEngine("a", gate=gate) as a,
        MockEngine("b", gate=gate) as b,
        serving(a, b, policy="round-robin") as router,
    ):
        router.router.proxy._budget.take = lambda now: False  # type: ignore[method-assign]
        pending = [asyncio.create_task(router.chat()) for _ in range(40)]
        await eventually(lambda: a.active + b.active == 40)
        assert b.active == 20
        await b.kill()
        for _ in range(80):
            gate.release()
        assert {(await each).status_code for each in pending} == {200}


async def test_backoff_is_jittered_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("blade_router.endpoints.retry_budget.asyncio.sleep", sleep)
    for _ in range(50):
        await RetryBudget.back_off(1)
        await RetryBudget.back_off(30)
    assert len(set(slept)) == 100
    assert 0.0 <= min(slept) <= max(slept) <= MAX_BACKOFF
    assert max(slept[::2]) <= 0.01 < max(slept[1::2])


# what an engine requests


@pytest.mark.parametrize(
    ("status", "value", "seconds"), [(503, b"7", 7.0), (503, b"Wed, 21 Oct 2026 07:28:00 GMT", 0.0), (429, b"7", 0.0)]
)
def test_retry_after_is_read_from_a_503(status: int, value: bytes, seconds: float) -> None:
    assert retry_after_seconds(status, [(b"retry-after", value)]) == seconds
    assert retry_after_seconds(status, []) == 0.0


def test_retry_after_is_no_failure_and_has_an_end() -> None:
    found = endpoints(2)
    first, second = found.all
    first.health.eject_for(10**6)
    now = time.monotonic()
    assert (first.health.failures, first.usable(now), first.usable(now + MAX_RETRY_AFTER)) == (0, False, True)
    second.health.eject_for(5)
    assert second.usable(now), "half of them stay"


async def test_engine_that_sends_retry_after_gets_it() -> None:
    async with MockEngine("good") as good, MockEngine("busy", mode="busy") as busy, serving(good, busy) as router:
        for _ in range(6):
            assert (await router.chat()).status_code == 200
        assert len(busy.received) == 1
        assert by_name(router, "busy").health.failures == 0
        assert by_name(router, "busy").health.ejected_until > time.monotonic() + 20


async def test_timeout_counts_and_the_request_is_retried() -> None:
    async with MockEngine("good") as good, MockEngine("bad", mode="hang") as bad:
        async with serving(good, bad, first_byte_timeout=0.05) as router:
            while by_name(router, "bad").health.breaker.closed:
                assert (await router.chat()).status_code == 200
            assert len(bad.received) == CONSECUTIVE_FAILURES


# slow start


def test_slow_start_raises_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("blade_router.endpoints.endpoint_set.time.monotonic", lambda: now)
    found = endpoints(2, slow_start=10.0)
    first, second = found.all
    assert first.health.weight == pytest.approx(SLOW_START_MIN_WEIGHT)
    now += 5.0
    found.candidates()
    assert first.health.weight == pytest.approx(0.55)
    now += 5.0
    found.candidates()
    assert first.health.weight == second.health.weight == 1.0
    second.health.mark_down("gone")
    second.health.mark_up()
    assert (first.health.weight, second.health.weight) == (1.0, pytest.approx(SLOW_START_MIN_WEIGHT))
    now += 10.0
    found.candidates()
    break_down(second)
    second.health.record_success()
    assert second.health.weight == pytest.approx(SLOW_START_MIN_WEIGHT), "the breaker closed"


def test_slow_start_can_be_off() -> None:
    assert [endpoint.health.weight for endpoint in endpoints(2, slow_start=0.0).all] == [1.0, 1.0]


# listeners


def test_listeners_are_notified_of_changes_only() -> None:
    found = endpoints(2)
    notified: list[int] = []
    found.listeners.append(lambda: notified.append(found.usable_count()))
    first = found.all[0]
    first.health.mark_up()
    first.health.record_success()
    assert notified == []
    first.health.mark_draining()
    first.health.mark_draining()
    first.health.mark_up()
    first.health.mark_down("x")
    first.health.mark_down("x")
    first.health.mark_up()
    break_down(first)
    first.health.record_success()
    found.update([])
    assert notified == [1, 2, 1, 2, 1, 2, 0]
