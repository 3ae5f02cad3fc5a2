"""What is counted, how little of it depends on clients, and who may see it."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from router_support.engine import MockEngine
from router_support.serving import Running, eventually, question, raw_post, serving

from blade_protocol import environment, headers, paths
from blade_protocol.routing import EndpointConfig
from blade_protocol.signals import RouterSignals, ServiceSignals
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.observability.accounts import LABEL_LENGTH, MAX_ACCOUNTS, MAX_LABELS, OTHER
from blade_router.observability.metrics import Metrics
from blade_router.observability.signals import merge_signals
from blade_router.request.usage import Usage
from blade_router.statistics.distribution import BUCKETS, SLOTS, Distribution, histogram_family
from blade_router.statistics.rates import Rate


async def signals(router: Running) -> RouterSignals:
    response = await router.admin.get(paths.INTERNAL_SIGNALS)
    assert response.status_code == 200
    return msgspec.json.decode(response.content, type=RouterSignals)


class UsageEngine(MockEngine):
    """Its streams end with their usage."""

    def event(self, index: int) -> bytes:
        if index < self.tokens - 1:
            return super().event(index)
        usage = {"prompt_tokens": 80, "completion_tokens": 11, "prompt_tokens_details": {"cached_tokens": 60}}
        return b"data: " + json.dumps({"id": "c", "choices": [], "usage": usage}).encode() + b"\n\n"


# distributions and rates


@given(st.lists(st.floats(0.0002, 900.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_percentiles_are_close_and_never_too_low(durations: list[float], part: float) -> None:
    distribution = Distribution()
    for seconds in durations:
        distribution.observe(seconds)
    below = sorted(durations)
    exact = next(value for index, value in enumerate(below, 1) if index >= part * len(below))
    (found,) = distribution.percentiles(part)
    assert min(exact, 900.0) <= found <= exact * 1.14


def test_histogram_buckets_are_cumulative_and_inclusive() -> None:
    one, other = Distribution(), Distribution()
    for seconds in (0.001, BUCKETS[0], 1e9):
        one.observe(seconds)
    other.observe(0.02)
    samples = histogram_family("h", "text", BUCKETS, one, other).samples
    values = {sample.labels.get("le"): sample.value for sample in samples}
    assert (values["0.005"], values["0.01"], values["0.025"], values["300.0"], values["+Inf"]) == (2, 2, 3, 3, 4)


def test_percentiles_forget_and_histograms_do_not() -> None:
    distribution = Distribution()
    distribution.observe(4.0)
    distribution.rotate(SLOTS - 1)
    assert distribution.percentiles(0.5) == [4.0]
    distribution.rotate()
    distribution.observe(1.0)
    assert distribution.percentiles(0.5, 1.0) == [1.0, 1.0]
    counts, total = distribution.totals()
    assert (sum(counts), total) == (2, 5.0)


@given(st.lists(st.floats(0.0, 3.0), max_size=60))
def test_rate_counts_a_sliding_window(gaps: list[float]) -> None:
    rate, now, times = Rate(10), 0.0, []
    for gap in gaps:
        now += gap
        rate.add(now)
        times.append(now)
    assert rate.recent(now) == sum(int(now) - int(time) <= 10 for time in times)
    assert rate.count == len(times)
    assert rate.recent(now + 20.0) == 0


def test_rate_is_per_second_from_the_start() -> None:
    rate = Rate(10)
    assert rate.per_second(5.0) == 0.0
    for tick in range(20):
        rate.add(100.0 + tick / 4)
    assert rate.per_second(105.0) == pytest.approx(4.0)


# counters


def finish(metrics: Metrics, *, key: str = "", model: str = "m", status: int = 200, usage: Usage | None = None) -> None:
    metrics.begin(0.0)
    metrics.end(status, 0.0, 0.0, False, key, model, usage)


@pytest.mark.parametrize("outputs", [1, 4])
def test_a_request_of_several_outputs_counts_once(outputs: int) -> None:
    metrics = Metrics(EndpointSet())
    metrics.begin(0.0)
    now = time.perf_counter()
    metrics.end(200, now - 3.0, now - 2.0, True, "", "m", Usage(10, 5 * outputs), outputs)
    assert metrics.requests == {200: 1}
    (counts, seconds), (first, _) = metrics.tpot.totals(), metrics.ttft.totals()
    assert sum(counts) == sum(first) == 1
    assert seconds == pytest.approx(0.5, abs=0.1), "four gaps between five tokens, which all outputs have"


def test_clients_cannot_make_the_router_count_names_for_ever() -> None:
    metrics = Metrics(EndpointSet())
    for number in range(3 * MAX_LABELS):
        finish(metrics, model=f"guess {number}", status=404)
    assert set(metrics.accounts.all) == {("", OTHER)}, "names that were never served are not kept"
    for number in range(3 * MAX_LABELS):
        finish(metrics, key=f"key {number}")
    assert len({key for key, _ in metrics.accounts.all}) <= MAX_LABELS + 1
    for number in range(3 * MAX_LABELS):
        for key in range(20):
            finish(metrics, key=f"key {key}", model=f"model {number}")
    assert len(metrics.accounts.all) <= MAX_ACCOUNTS + 1
    assert metrics.requests == {404: 3 * MAX_LABELS, 200: 3 * MAX_LABELS * 21}
    assert metrics.accounts.all["key 0", OTHER].requests[200] > 0


def test_only_models_there_are_become_labels() -> None:
    endpoints = EndpointSet()
    endpoints.update([EndpointConfig(url="http://a:1"), EndpointConfig(url="http://b:1")])
    metrics = Metrics(endpoints)
    metrics.configured_models = frozenset({"listed"})
    first, second = endpoints.all
    first.report.models = frozenset({"served", "l" * 300})
    finish(metrics, model="anything")
    second.report.models = frozenset({"served"})
    for model in ("listed", "served", "l" * 300):
        finish(metrics, model=model, status=429)
    finish(metrics, model="guess")
    expected = {"anything", "listed", "served", "l" * LABEL_LENGTH, OTHER}
    assert {model for _, model in metrics.accounts.all} == expected, (
        "an engine without a list proves it by its response"
    )


def test_tokens_are_counted_by_kind_and_hits_only_where_they_are_reported() -> None:
    metrics = Metrics(EndpointSet())
    assert metrics.hit_ratio is None
    finish(metrics, usage=Usage(prompt_tokens=1000, completion_tokens=7))
    assert metrics.hit_ratio is None
    finish(metrics, usage=Usage(prompt_tokens=100, completion_tokens=5, cached_tokens=75))
    finish(metrics, usage=Usage(prompt_tokens=100, completion_tokens=5, cached_tokens=0))
    account = metrics.accounts.all["", "m"]
    assert (account.prompt_tokens, account.cached_tokens, account.completion_tokens) == (1200, 75, 17)
    assert metrics.hit_ratio == pytest.approx(0.375)


def test_rates_are_of_the_recent_past(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("blade_router.observability.metrics.time.perf_counter", lambda: now)
    metrics = Metrics(EndpointSet())
    for _ in range(40):  # one request per second comes, and ends in the one after
        metrics.begin(now)
        now += 1.0
        metrics.end(200, now - 1.0, 0.0, False, "", "m", None)
    passed = metrics.window(10.0)
    assert 10.0 <= passed.time <= 16.0
    assert passed.arrivals == pytest.approx(passed.time, abs=1.0)
    assert passed.ended == pytest.approx(passed.time, abs=1.0)
    for _ in range(5):
        metrics.begin(now)
    assert metrics.drain_seconds == pytest.approx(5.0, rel=0.1)
    assert metrics.live == pytest.approx(5 + 5 + passed.arrivals, abs=1)
    now += 200.0
    assert metrics.window(60.0).arrivals == 0
    assert metrics.drain_seconds is None, "nothing ends any more"


def test_counting_keeps_nothing_per_request() -> None:
    metrics = Metrics(EndpointSet())
    usage = Usage(100, 10, 50)
    finish(metrics, usage=usage)
    accounts, snapshots = len(metrics.accounts.all), len(metrics._snapshots)
    for _ in range(1000):
        finish(metrics, usage=usage)
    assert (len(metrics.accounts.all), len(metrics._snapshots)) == (accounts, snapshots)


# the whole router


async def test_signals_of_streams_and_others() -> None:
    async with UsageEngine("a", tokens=4, delay=0.005) as engine, serving(engine) as router:
        for stream in (True, True, False):
            assert (await router.chat(stream=stream)).status_code == 200
        found = await signals(router)
        assert (found.arrivals, found.finished, found.failed, found.in_flight) == (3, 3, 0, 0)
        assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (161, 120, 23)
        assert found.prefix_hit_ratio == pytest.approx(0.75)
        assert 0.005 <= found.ttft_seconds.p50 <= found.e2e_seconds.p99
        assert 0.0 < found.tpot_seconds.p50 < found.ttft_seconds.p50
        assert found.arrivals_per_second > 0
        assert found.time >= found.started
        (service,) = found.services
        assert (service.endpoints, service.usable, service.capacity, service.saturation) == (1, 1, 0, None)
        assert await router.metric("blade_router_time_to_first_token_seconds_count") == 2
        assert await router.metric("blade_router_time_per_output_token_seconds_count") == 2
        assert await router.metric('blade_router_tokens_total{key="",kind="cached",model="mock"}') == 120
        assert await router.metric('blade_router_model_requests_total{code="200",key="",model="mock"}') == 3
        assert await router.metric("blade_router_prefix_hit_ratio") == pytest.approx(0.75)


async def test_signals_of_a_busy_and_of_an_absent_service(tmp_path: Path) -> None:
    config = tmp_path / "router.json"
    config.write_text(json.dumps({"queue": {"endpoint_requests": 1}, "hold": {"max_requests": 9}}))
    gate = asyncio.Semaphore(0)
    async with MockEngine("a", gate=gate) as engine, serving(engine, config=config) as router:
        writers = [(await raw_post(router.port, question()))[1] for _ in range(3)]
        request_queues = router.router.request_queues
        await eventually(lambda: request_queues.queue().state().requests == 2 and engine.active == 1)
        found = await signals(router)
        (service,) = found.services
        assert (service.running, service.capacity, service.saturation) == (1, 1, 1.0)
        assert service.queued_requests == 2
        assert service.queued_tokens > 0
        assert service.queued_bytes == 2 * len(json.dumps(question()))
        assert service.queue_oldest_seconds >= service.queue_p95_seconds > 0
        assert found.in_flight == 3
        assert await router.metric('blade_router_queue_requests{service=""}') == 2
        assert await router.metric('blade_router_pool_saturation_ratio{service=""}') == 1
        for writer in writers:
            writer.close()
        await eventually(lambda: router.router.metrics.in_flight == 0)
        await engine.kill()
        await eventually(lambda: not router.router.endpoints.usable_count())
        _, writer = await raw_post(router.port, question())
        await eventually(lambda: request_queues.pending.count() == 1)
        (service,) = (await signals(router)).services
        assert (service.usable, service.held_requests, service.held_arrivals) == (0, 1, 1)
        assert service.held_oldest_seconds > 0
        assert await router.metric('blade_router_held_requests{service=""}') == 1
        assert await router.metric('blade_router_held_arrivals_total{service=""}') == 1
        writer.close()


def test_saturation_without_a_queue_is_what_engines_report() -> None:
    found = EndpointSet()
    found.update(EndpointConfig(url=f"http://10.0.0.{number}:80") for number in range(3))
    metrics = Metrics(found)
    assert metrics.saturation("") is None
    for endpoint in found.all:
        endpoint.health.mark_up()
    first, second, third = found.all
    first.report.waiting, first.report.kv_usage, first.report.reported_at = 10, 0.4, time.monotonic()
    second.report.waiting, second.report.kv_usage, second.report.reported_at = 0, 0.8, time.monotonic()
    third.report.waiting, third.report.reported_at = 1000, time.monotonic() - 60
    assert metrics.saturation("") == pytest.approx((2.0 + 1.0) / 2)


async def test_refusals_are_counted_by_reason() -> None:
    async with serving() as router:
        await router.chat()
        await router.client.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
        assert (await signals(router)).refused == {"no_endpoint": 1, "invalid_json": 1}
        assert await router.metric('blade_router_refused_requests_total{reason="invalid_json"}') == 1


def test_signals_of_several_processes_are_one() -> None:
    def one(**extra: Any) -> RouterSignals:
        service = ServiceSignals(service="", endpoints=2, running=3, capacity=4, queue_oldest_seconds=extra.pop("age"))
        return RouterSignals(started=1.0, time=2.0, services=(service,), arrivals_per_second=1.0, **extra)

    found = merge_signals(
        [
            one(age=1.0, arrivals=3, refused={"queue_full": 1}, prefix_hit_ratio=0.5, drain_seconds=None),
            one(age=4.0, arrivals=4, refused={"queue_full": 2, "x": 1}, prefix_hit_ratio=1.0, drain_seconds=2.0),
            RouterSignals(started=0.5, time=3.0, services=(ServiceSignals(service="b", held_requests=1),)),
        ]
    )
    assert (found.started, found.time, found.arrivals, found.drain_seconds) == (0.5, 3.0, 7, 2.0)
    assert found.refused == {"queue_full": 3, "x": 1}
    assert found.prefix_hit_ratio == pytest.approx(0.75)
    empty, other = found.services
    assert (empty.endpoints, empty.running, empty.capacity, empty.saturation) == (2, 6, 8, 0.75)
    assert (empty.queue_oldest_seconds, other.held_requests) == (4.0, 1)


# who may see it


async def test_token_is_required_when_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("secret-1\n")
    monkeypatch.setenv(environment.INTERNAL_TOKEN_FILE, str(file))
    async with MockEngine("a") as engine, serving(engine) as router:

        async def query(token: str | None) -> httpx.Response:
            extra = {headers.INTERNAL_TOKEN: token} if token is not None else {}
            return await router.admin.get(paths.INTERNAL_SIGNALS, headers=extra)

        assert [(await query(token)).status_code for token in (None, "", "secret", "secret-1")] == [403, 403, 403, 200]
        assert headers.INTERNAL_TOKEN in (await query(None)).json()["error"]["message"]
        file.write_text("secret-2")
        assert [(await query(token)).status_code for token in ("secret-1", "secret-2")] == [200, 200], (
            "not all change at once"
        )
        file.write_text("")
        assert (await query("")).status_code == 403
        file.unlink()
        assert (await query("secret-2")).status_code == 403


# idleness


async def test_a_router_is_idle_since_an_engine_last_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Semaphore(0)
    async with MockEngine("a", gate=gate) as engine, serving(engine) as router:
        metrics = router.router.metrics
        metrics.answered_at -= 100
        router.router.request_queues.pending.active_at -= 100
        assert ((await signals(router)).idle_seconds or 0) >= 100
        assert (await router.client.get("/v1/nothing")).status_code == 404
        assert ((await signals(router)).idle_seconds or 0) >= 100, "no engine got it"
        request = asyncio.create_task(router.chat())
        await eventually(lambda: engine.active == 1)
        assert (await signals(router)).idle_seconds == 0
        gate.release()
        await request
        assert 0 < ((await signals(router)).idle_seconds or 0) < 100


async def test_a_request_that_waited_in_vain_is_one_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "router.json"
    path.write_text(json.dumps({"hold": {"max_requests": 9}}))
    async with serving(wait=False, config=path) as router:
        pending = router.router.request_queues.pending
        router.router.metrics.answered_at -= 100
        pending.active_at -= 100
        _, writer = await raw_post(router.port, question())
        await eventually(lambda: pending.count() == 1)
        assert (await signals(router)).idle_seconds == 0
        writer.close()
        await eventually(lambda: pending.count() == 0)
        assert 0 < ((await signals(router)).idle_seconds or 0) < 100


def test_processes_are_idle_since_the_last_of_them_was_busy() -> None:
    one, other, old = (RouterSignals(started=0, time=1, idle_seconds=seconds) for seconds in (7.0, 3.0, None))
    assert merge_signals([one, other]).idle_seconds == 3.0
    assert merge_signals([one, old]).idle_seconds == 7.0
