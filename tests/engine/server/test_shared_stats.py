"""Numbers that API-server processes share, and the metrics made of it."""

from __future__ import annotations

import asyncio
import os
import time
from types import SimpleNamespace
from typing import Any

from engine_support.exposition import read_exposition
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from blade_llm.api.common.shared_stats import SharedStats
from blade_llm.api.generation.result import Choice, GenerationResult
from blade_llm.api.metrics.requests import NUM_COUNTERS, ServerMetrics
from blade_llm.engine.heartbeat import create_heartbeat, open_heartbeat
from blade_llm.server.supervisor import _drain
from blade_protocol import metrics as names


def _samples(text: bytes, name: str) -> dict[str, float]:
    rows = read_exposition(text.decode())
    return {key: value for key, value in rows.items() if key.startswith(name) and "_created" not in key}


def test_what_one_writes_the_others_read() -> None:
    ours = SharedStats(3, 2)
    theirs = SharedStats(3, 2, ours.descriptor)
    theirs.heartbeats[1][0] = 4
    theirs.heartbeats[2][0] = 3
    theirs.counters[2][1] = 0.5
    assert ours.num_open == 7
    assert [list(row) for row in ours.counters] == [[0, 0], [0, 0], [0, 0.5]]


def test_a_drain_is_for_all_and_that_before_the_end_is_final() -> None:
    ours = SharedStats(2, 0)
    theirs = SharedStats(2, 0, ours.descriptor)
    seen = []
    for value in (True, False):
        ours.set_draining(value)
        seen.append(theirs.draining)
    ours.shut_down()
    theirs.set_draining(False)
    assert [*seen, theirs.draining, ours.draining] == [True, False, True, True]


def test_one_api_server_with_work_and_without_progress_is_enough_to_be_stalled() -> None:
    stats = SharedStats(2, 0)
    assert not stats.stalled(1), "without work nothing is wrong"
    now = time.monotonic()
    stats.heartbeats[0][0], stats.heartbeats[0][1] = 1, now
    stats.heartbeats[1][0], stats.heartbeats[1][1] = 0, now - 100
    assert not stats.stalled(50)
    stats.heartbeats[1][0] = 1
    assert stats.stalled(50)


def test_a_step_that_goes_on_is_no_stall() -> None:
    descriptor = create_heartbeat()
    stats = SharedStats(1, 0, engine_beat=open_heartbeat(descriptor))
    now = time.monotonic()
    stats.heartbeats[0][0], stats.heartbeats[0][1] = 1, now - 100
    assert stats.stalled(50)
    beat = open_heartbeat(descriptor)  # the engine process's
    beat[0] = now - 40
    assert not stats.stalled(50)
    beat[0] = now - 60
    assert stats.stalled(50)
    os.close(descriptor)


async def test_a_drain_waits_for_requests_that_another_api_server_accepted_as_it_began() -> None:
    stats = SharedStats(2, 0)
    context: Any = SimpleNamespace(shared_stats=stats, set_draining=stats.set_draining)
    monitor: Any = SimpleNamespace(failed=asyncio.Event())
    drain = asyncio.ensure_future(_drain(context, monitor, 30))
    for _ in range(5):
        await asyncio.sleep(0)
    assert stats.draining
    stats.heartbeats[1][0] = 1  # it had checked just before
    await asyncio.sleep(0.1)
    assert not drain.done()
    stats.heartbeats[1][0] = 0
    await drain


@given(rows=st.lists(st.lists(st.floats(0.0, 100.0)), min_size=1, max_size=3))
def test_histograms_of_all_api_servers_are_as_if_one_had_measured(rows: list[list[float]]) -> None:
    stats = SharedStats(len(rows), NUM_COUNTERS)
    api_servers = [ServerMetrics(lambda: None, counters, stats.counters) for counters in stats.counters]
    registry = CollectorRegistry()
    buckets = (
        *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
        *(120, 240),
    )
    one = Histogram(names.ENGINE_TTFT, "of one", buckets=buckets, registry=registry)
    for api_server, row in zip(api_servers, rows, strict=True):
        for seconds in row:
            choice = Choice.__new__(Choice)
            choice.first_token_at, choice.last_token_at, choice.num_tokens, choice.finish_reason = seconds, 0, 1, "stop"
            choice.num_replayed = choice.num_prompt = 0
            choice.gaps, choice.queue_seconds = [], None
            api_server.observe(GenerationResult(None, [choice], 0, started=0.0))  # type: ignore[arg-type]
            one.observe(seconds)
    expected = _samples(generate_latest(registry), names.ENGINE_TTFT)
    found = [_samples(api_server.render(), names.ENGINE_TTFT) for api_server in api_servers]
    for samples in found:
        total = f"{names.ENGINE_TTFT}_sum"
        assert abs(samples.pop(total) - expected[total]) < 1e-6 * max(expected[total], 1)
        assert samples == {name: value for name, value in expected.items() if name != total}
    finished = names.ENGINE_REQUESTS + '_total{finished_reason="stop"}'
    assert _samples(api_servers[0].render(), finished)[finished] == sum(map(len, rows))
