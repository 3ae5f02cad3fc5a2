"""The engine's last state as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from blade_protocol import metrics as names
from blade_protocol.state import EngineState


class StateCollector(Collector):
    """Calls ``state`` at every scrape."""

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
