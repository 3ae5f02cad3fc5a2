"""Numbers of the benchmark, against known ones."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import numpy as np
import pytest

from blade_llm.benchmark.client.measurement import Failure, Measurement
from blade_llm.benchmark.load import Load
from blade_llm.benchmark.report.summary import Summary, summarize
from blade_llm.benchmark.slo import Objective, parse_objective, well_served
from blade_llm.benchmark.statistics import distribution
from blade_llm.benchmark.workload.arrivals import arrival_times
from blade_llm.benchmark.workload.lengths import sharegpt_lengths, usual_length


async def _never(sample: object, due: float) -> Measurement:
    raise AssertionError


def measured(sent: float = 0.0, *events: float, ended: float, tokens: int | None = None, **more: object) -> Measurement:
    fields = {"due": sent, "counted_by_server": True, **more}
    count = len(events) if tokens is None else tokens
    return Measurement(sent=sent, events=events, ended=ended, output_tokens=count, **fields)  # type: ignore[arg-type]


def summary_of(*requests: Measurement, seconds: float = 10.0, slo: tuple[Objective, ...] = ()) -> Summary:
    load = Load(_never, finished=list(requests), sent=len(requests), started=0.0, ended=seconds, cpu_seconds=1.0)
    return summarize(load, {}, slo)


def test_percentiles_are_numpy_s() -> None:
    source = random.Random(3)
    values = [source.expovariate(1) for _ in range(137)]
    found = distribution(values)
    assert found is not None
    assert found.count == 137
    assert found.mean == pytest.approx(np.mean(values))
    shown = [found.p50, found.p90, found.p95, found.p99, found.max]
    assert shown == pytest.approx(list(np.percentile(values, [50, 90, 95, 99, 100])))


def test_few_values() -> None:
    assert distribution([]) is None
    one = distribution([7.0])
    assert one is not None
    assert (one.mean, one.p50, one.p99, one.max) == (7, 7, 7, 7)


def test_latencies_of_a_request() -> None:
    request = measured(10.0, 10.5, 10.6, 10.9, ended=11.0)
    assert request.ttft == pytest.approx(0.5)
    assert request.tpot == pytest.approx(0.2)
    assert request.gaps == pytest.approx([0.1, 0.3])
    assert request.e2e == pytest.approx(1.0)


def test_tokens_that_come_together_count_each() -> None:
    request = measured(0.0, 1.0, 2.0, ended=2.0, tokens=11)
    assert request.tpot == pytest.approx(0.1)
    assert request.gaps == [1.0]


def test_what_one_token_and_no_token_have() -> None:
    one = measured(0.0, 0.5, ended=0.6)
    assert one.ttft == 0.5
    assert one.tpot is None
    none = measured(0.0, ended=0.6)
    assert none.ttft is None


def test_rates_count_only_what_succeeded() -> None:
    good = measured(0.0, 1.0, 2.0, ended=2.0, tokens=20, input_tokens=100)
    bad = measured(0.0, 1.0, ended=2.0, tokens=7, input_tokens=100, failure=Failure(kind="stream cut", detail="why"))
    summary = summary_of(good, good, bad, seconds=4.0)
    assert (summary.succeeded, summary.failed) == (2, 1)
    assert summary.requests_per_s == 0.5
    assert (summary.input_tokens_per_s, summary.output_tokens_per_s) == (50, 10)
    assert [(error.kind, error.count, error.example) for error in summary.errors] == [("stream cut", 1, "why")]
    assert summary.ttft is not None
    assert summary.ttft.count == 2


def test_goodput_counts_failures_as_not_served() -> None:
    slo = (parse_objective("ttft=1s"), parse_objective("tpot<=100ms"))
    fast = measured(0.0, 0.9, 1.0, ended=1.0)
    late = measured(0.0, 1.1, 1.2, ended=1.2)
    slow = measured(0.0, 0.5, 0.7, ended=0.7)
    failed = measured(0.0, 0.5, ended=0.6, failure=Failure(kind="HTTP 500"))
    summary = summary_of(fast, fast, late, slow, failed, seconds=4.0, slo=slo)
    assert summary.goodput is not None
    assert summary.goodput.requests_per_s == 0.5
    assert summary.goodput.share == 0.4


def test_an_empty_response_keeps_ttft_only_if_it_ends_in_time() -> None:
    empty = measured(0.0, ended=2.0)
    assert not well_served(empty, [parse_objective("ttft=1s")])
    assert well_served(empty, [parse_objective("ttft=3s"), parse_objective("tpot=1ms")])
    assert any("no text" in note for note in summary_of(empty).notes)


@pytest.mark.parametrize(
    ("text", "metric", "limit"), [("ttft=200ms", "ttft", 0.2), ("E2E = 2.5s", "e2e", 2.5), ("tpot<=50ms", "tpot", 0.05)]
)
def test_objectives_read(text: str, metric: str, limit: float) -> None:
    found = parse_objective(text)
    assert found.metric == metric
    assert found.limit == pytest.approx(limit)


@pytest.mark.parametrize("text", ["ttft", "ttft=200", "speed=1s", "ttft=-1s", "ttft=1m", ""])
def test_bad_objectives_say_how_to_write_them(text: str) -> None:
    with pytest.raises(ValueError, match="ttft=200ms"):
        parse_objective(text)


def test_a_busy_generator_is_reported() -> None:
    busy = Load(_never, finished=[measured(0.0, 1.0, ended=1.0)], sent=1, started=0.0, ended=10.0, cpu_seconds=8.5)
    assert any("85% of a core" in note for note in summarize(busy, {}).notes)
    late = measured(1.0, 2.0, ended=2.0, due=0.5)
    assert any("sent late" in note for note in summary_of(late).notes)
    assert summary_of(measured(0.0, 1.0, ended=1.0)).notes == []


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gaps_have_the_requested_rate_and_variation(burstiness: float, variation: float) -> None:
    times = list(itertools.islice(arrival_times(50.0, burstiness, random.Random(1)), 20_001))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 0
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(variation, rel=0.05)


def test_arrivals_repeat_with_the_seed() -> None:
    first, again, other = (
        list(itertools.islice(arrival_times(2.0, 1.0, random.Random(seed)), 50)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_an_infinite_rate_comes_at_once() -> None:
    assert list(itertools.islice(arrival_times(math.inf, 1.0, random.Random(1)), 3)) == [0, 0, 0]


def test_sharegpt_lengths_have_sharegpt_s_means() -> None:
    pairs = list(itertools.islice(sharegpt_lengths(random.Random(5)), 20_000))
    assert all(usual_length(tokens_in, tokens_out) for tokens_in, tokens_out in pairs)
    assert statistics.fmean(tokens_in for tokens_in, _ in pairs) == pytest.approx(161, rel=0.05)
    assert statistics.fmean(tokens_out for _, tokens_out in pairs) == pytest.approx(338, rel=0.05)
    assert statistics.median(tokens_in for tokens_in, _ in pairs) < 100
    short = itertools.islice(sharegpt_lengths(random.Random(5), longest=64), 500)
    assert max(map(sum, short)) <= 64
