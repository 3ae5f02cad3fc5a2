"""Prometheus metrics of one front process: latencies measured here, counts and gauges from the engine's last state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from blade_llm.api.answers import Answers
from blade_protocol import metrics as names
from blade_protocol.state import EngineState

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_TTFT_BUCKETS: Final = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TPOT_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_E2E_BUCKETS: Final = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)


class ServerMetrics:
    """``state`` is asked at every scrape."""

    def __init__(self, state: Callable[[], EngineState | None]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_StateCollector(state))
        self._ttft = Histogram(
            names.ENGINE_TTFT, "Time from a request's arrival to its first token",
            buckets=_TTFT_BUCKETS, registry=self._registry,
        )  # fmt: skip
        self._tpot = Histogram(
            names.ENGINE_TPOT, "Mean time between an answer's tokens after the first",
            buckets=_TPOT_BUCKETS, registry=self._registry,
        )  # fmt: skip
        self._e2e = Histogram(
            names.ENGINE_E2E, "Time from a request's arrival to its last token",
            buckets=_E2E_BUCKETS, registry=self._registry,
        )  # fmt: skip
        self._finished = Counter(
            names.ENGINE_REQUESTS, "Answers finished", ["finished_reason"], registry=self._registry
        )  # fmt: skip

    def observe(self, answers: Answers) -> None:
        """Count a finished or abandoned request."""
        for choice in answers.choices:
            self._finished.labels(choice.finish_reason or "abort").inc()
            if choice.first_token_at is None:
                continue
            self._ttft.observe(choice.first_token_at - answers.started)
            if choice.num_tokens > 1:
                self._tpot.observe((choice.last_token_at - choice.first_token_at) / (choice.num_tokens - 1))
        if answers.finished:
            self._e2e.observe(time.monotonic() - answers.started)

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self._registry)


class _StateCollector(Collector):
    def __init__(self, state: Callable[[], EngineState | None]) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        if state is None:
            return
        used = state.kv_blocks_total - state.kv_blocks_free
        gauges = (
            (names.ENGINE_RUNNING, "Requests that own a row", state.running),
            (names.ENGINE_WAITING, "Requests that wait for a row", state.waiting),
            (names.ENGINE_KV_USAGE, "Share of KV blocks in use", used / max(state.kv_blocks_total, 1)),
            (names.ENGINE_KV_BLOCKS, "KV blocks", state.kv_blocks_total),
        )
        counters = (
            (names.ENGINE_PROMPT_TOKENS, "Prompt tokens taken in", state.prompt_tokens_total),
            (names.ENGINE_CACHED_TOKENS, "Prompt tokens found in the prompt cache", state.cached_tokens_total),
            (names.ENGINE_GENERATION_TOKENS, "Tokens generated", state.generation_tokens_total),
            (names.ENGINE_PREEMPTIONS, "Requests preempted", state.preemptions_total),
        )
        for name, text, value in gauges:
            yield GaugeMetricFamily(name, text, value=value)
        for name, text, value in counters:
            yield CounterMetricFamily(name, text, value=value)

    def describe(self) -> Iterator[Metric]:
        return iter(())
