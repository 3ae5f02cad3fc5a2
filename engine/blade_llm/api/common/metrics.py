"""Prometheus metrics of a server: latencies that API servers measure, counts and gauges from the engine's last state.

Each API-server process counts into its own row of the shared stats; the one that is scraped adds the rows up.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from blade_protocol import metrics as names
from blade_protocol.state import EngineState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Counters: TypeAlias = "memoryview[float] | list[float]"
"""Counters of one API-server process: :data:`NUM_COUNTERS` of them."""


@dataclass(frozen=True, slots=True)
class _Histogram:
    """Where a histogram's numbers lie: one count a bucket (not cumulative), the infinite one last, then the sum."""

    name: str
    text: str
    buckets: tuple[float, ...]
    begin: int

    @property
    def end(self) -> int:
        return self.begin + len(self.buckets) + 2

    def observe(self, counters: Counters, value: float) -> None:
        counters[self.begin + bisect_left(self.buckets, value)] += 1
        counters[self.end - 1] += value

    def family(self, totals: Sequence[float]) -> Metric:
        bounds = [*map(floatToGoString, self.buckets), "+Inf"]
        *counts, sum_value = totals[self.begin : self.end]
        pairs = list(zip(bounds, accumulate(counts), strict=True))
        return HistogramMetricFamily(self.name, self.text, buckets=pairs, sum_value=sum_value)


_TTFT: Final = _Histogram(
    names.ENGINE_TTFT, "Time from a request's arrival to its first token",
    (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80), 0,
)  # fmt: skip
_TPOT: Final = _Histogram(
    names.ENGINE_TPOT, "Mean time between a response's tokens after the first",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5), _TTFT.end,
)  # fmt: skip
_E2E: Final = _Histogram(
    names.ENGINE_E2E, "Time from a request's arrival to its last token",
    (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960), _TPOT.end,
)  # fmt: skip
_REASONS: Final = {reason: _E2E.end + number for number, reason in enumerate(("stop", "length", "abort"))}
_IGNORED: Final = _E2E.end + len(_REASONS)
NUM_COUNTERS: Final = _IGNORED + 1


class MeasuredChoice(Protocol):
    """One choice of a response, as far as metrics need it."""

    @property
    def finish_reason(self) -> str | None: ...
    @property
    def first_token_at(self) -> float | None: ...
    @property
    def last_token_at(self) -> float: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_replayed(self) -> int: ...


class MeasuredResult(Protocol):
    """All choices of one HTTP request, as far as metrics need them."""

    @property
    def choices(self) -> Sequence[MeasuredChoice]: ...
    @property
    def samples(self) -> int:
        """Choices for each prompt, one after the other."""

    @property
    def started(self) -> float: ...
    @property
    def finished(self) -> bool: ...


class ServerMetrics:
    """Counts into ``mine`` and renders the sum of all ``rows``; calls ``state`` at every scrape."""

    def __init__(self, state: Callable[[], EngineState | None], mine: Counters, rows: Sequence[Counters]) -> None:
        self._mine = mine
        self._registry = CollectorRegistry()
        self._registry.register(_StateCollector(state))
        self._registry.register(_RequestCollector(rows))

    def observe(self, result: MeasuredResult) -> None:
        """Count a finished or abandoned request: each of its prompts once, however many outputs it has."""
        for start in range(0, len(result.choices), result.samples):
            self._observe(result.choices[start : start + result.samples], result.started)
        if result.finished:
            _E2E.observe(self._mine, time.monotonic() - result.started)

    def _observe(self, choices: Sequence[MeasuredChoice], started: float) -> None:
        """Count the outputs for one prompt as one: the first token of all, the mean time between their tokens, and the
        worst reason to end."""
        reasons = {choice.finish_reason or "abort" for choice in choices}
        self._mine[_REASONS[next(reason for reason in ("abort", "length", "stop") if reason in reasons)]] += 1
        begun = [choice for choice in choices if choice.first_token_at is not None]
        if not begun:
            return
        first = min(choice.first_token_at for choice in begun if choice.first_token_at is not None)
        _TTFT.observe(self._mine, first - started)
        seconds, gaps = 0.0, 0
        for choice in begun:
            if (num_tokens := choice.num_tokens - choice.num_replayed) > 1 and choice.first_token_at is not None:
                seconds += choice.last_token_at - choice.first_token_at
                gaps += num_tokens - 1
        if gaps:
            _TPOT.observe(self._mine, seconds / gaps)

    def count_ignored(self, fields: int) -> None:
        """Count fields of a request that nobody knows."""
        self._mine[_IGNORED] += fields

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self._registry)


class _RequestCollector(Collector):
    def __init__(self, rows: Sequence[Counters]) -> None:
        self._rows = rows

    def collect(self) -> Iterator[Metric]:
        totals = [sum(column) for column in zip(*self._rows, strict=True)]
        for histogram in (_TTFT, _TPOT, _E2E):
            yield histogram.family(totals)
        finished = CounterMetricFamily(
            names.ENGINE_REQUESTS, "Requests finished, a prompt with several outputs once", labels=["finished_reason"]
        )
        for reason, position in _REASONS.items():
            finished.add_metric([reason], totals[position])
        yield finished
        text = "Fields of requests that nobody knows and that were left out"
        yield CounterMetricFamily(names.ENGINE_IGNORED_FIELDS, text, value=totals[_IGNORED])

    def describe(self) -> Iterator[Metric]:
        return iter(())


class _StateCollector(Collector):
    def __init__(self, state: Callable[[], EngineState | None]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        if state is None:
            return
        used = state.kv_blocks_total - state.kv_blocks_free
        gauges = (
            (names.ENGINE_RUNNING, "Requests in the running batch", state.running),
            (names.ENGINE_WAITING, "Requests waiting to be scheduled", state.waiting),
            (names.ENGINE_KV_USAGE, "Share of KV blocks in use", used / max(state.kv_blocks_total, 1)),
            (names.ENGINE_KV_BLOCKS, "KV blocks", state.kv_blocks_total),
        )
        counters: tuple[tuple[str, str, int], ...] = (
            (names.ENGINE_PROMPT_TOKENS, "Prompt tokens received", state.prompt_tokens_total),
            (names.ENGINE_CACHED_TOKENS, "Prompt tokens found in the prefix cache", state.cached_tokens_total),
            (names.ENGINE_GENERATION_TOKENS, "Tokens generated", state.generation_tokens_total),
            (names.ENGINE_PREEMPTIONS, "Requests preempted", state.preemptions_total),
        )
        if (counts := state.adapter_counts) is not None:
            yield GaugeMetricFamily(names.ENGINE_ADAPTERS, "LoRA adapters with a name", value=len(state.adapters))
            hits = CounterMetricFamily(names.ENGINE_ADAPTER_HITS, "Requests that found their adapter", labels=["tier"])
            loads = CounterMetricFamily(names.ENGINE_ADAPTER_LOADS, "Adapters brought there", labels=["tier"])
            tiers = (
                ("device", counts.device_hits, counts.device_loads),
                ("host", counts.host_hits, counts.host_loads),
            )
            for tier, hit, loaded in tiers:
                hits.add_metric([tier], hit)
                loads.add_metric([tier], loaded)
            yield hits
            yield loads
            counters += (
                (names.ENGINE_ADAPTER_EVICTIONS, "Adapters that left host memory for others", counts.host_evictions),
            )
        if (speculation := state.speculation) is not None:
            counters += (
                (names.ENGINE_DRAFTS, "Times that a request got draft tokens", speculation.drafts),
                (names.ENGINE_DRAFT_TOKENS, "Draft tokens", speculation.draft_tokens),
                (names.ENGINE_ACCEPTED_TOKENS, "Draft tokens that were accepted", speculation.accepted_tokens),
            )
            accepted = CounterMetricFamily(
                names.ENGINE_ACCEPTED_PER_POSITION, "Draft tokens accepted at a position", labels=["position"]
            )
            for position, number in enumerate(speculation.accepted_per_position):
                accepted.add_metric([str(position)], number)
            yield accepted
        for name, text, value in gauges:
            yield GaugeMetricFamily(name, text, value=value)
        for name, text, value in counters:
            yield CounterMetricFamily(name, text, value=value)

    def describe(self) -> Iterator[Metric]:
        return iter(())
