"""The engine's last state as metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from blade_llm.api.metrics.catalogue import counter, gauge
from blade_llm.cache.memory_limit import memory_left_bytes
from blade_protocol import metrics as names
from blade_protocol.adapters import AdapterCounts
from blade_protocol.state import EngineState, ImageCounts, MemoryPlan, SpeculationCounts


class StateCollector(Collector):
    """Calls ``state`` at every scrape. ``memory_left``: free bytes of the host, of an engine that computes there."""

    def __init__(
        self, state: Callable[[], EngineState | None], memory_left: Callable[[], int] = memory_left_bytes
    ) -> None:
        self._state = state
        self._memory_left = memory_left

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        if state is None:
            return
        if state.adapter_counts is not None:
            yield from _adapters(state.adapters, state.adapter_counts)
        if state.speculation is not None:
            yield from _speculation(state.speculation)
        images = state.images or ImageCounts(encoded=0, hits=0)
        yield counter(names.ENGINE_IMAGES_ENCODED, images.encoded)
        yield counter(names.ENGINE_ENCODER_CACHE_HITS, images.hits)
        used = state.kv_blocks_total - state.kv_blocks_free
        yield gauge(names.ENGINE_RUNNING, state.running)
        yield gauge(names.ENGINE_WAITING, state.waiting)
        yield gauge(names.ENGINE_KV_USAGE, used / max(state.kv_blocks_total, 1))
        yield gauge(names.ENGINE_KV_BLOCKS, state.kv_blocks_total)
        if state.memory is not None and state.memory.device:
            yield self._memory(state.memory)
        yield counter(names.ENGINE_PROMPT_TOKENS, state.prompt_tokens_total)
        yield counter(names.ENGINE_CACHED_TOKENS, state.cached_tokens_total)
        yield counter(names.ENGINE_GENERATION_TOKENS, state.generation_tokens_total)
        yield counter(names.ENGINE_PREEMPTIONS, state.preemptions_total)

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def _memory(self, plan: MemoryPlan) -> Metric:
        """Of a GPU the plan, which nothing exceeds; of a host what is free now, since others use it, too."""
        family = gauge(names.ENGINE_MEMORY)
        purposes = {
            "weights": plan.weights,
            "kv_cache": plan.kv_cache,
            "activations": plan.activation_peak,
            "graphs": plan.graphs,
            "adapters": plan.lora,
            "draft": plan.draft,
            "images": plan.encoder,
            "free": plan.free if plan.free is not None else self._memory_left(),
        }
        for purpose, size in purposes.items():
            family.add_metric([plan.device, purpose], size)
        return family


def _adapters(adapters: tuple[str, ...], counts: AdapterCounts) -> Iterator[Metric]:
    yield gauge(names.ENGINE_ADAPTERS, len(adapters))
    hits, loads = counter(names.ENGINE_ADAPTER_HITS), counter(names.ENGINE_ADAPTER_LOADS)
    tiers = (("device", counts.device_hits, counts.device_loads), ("host", counts.host_hits, counts.host_loads))
    for tier, hit, loaded in tiers:
        hits.add_metric([tier], hit)
        loads.add_metric([tier], loaded)
    yield hits
    yield loads
    yield counter(names.ENGINE_ADAPTER_EVICTIONS, counts.host_evictions)


def _speculation(counts: SpeculationCounts) -> Iterator[Metric]:
    yield counter(names.ENGINE_DRAFTS, counts.drafts)
    yield counter(names.ENGINE_DRAFT_TOKENS, counts.draft_tokens)
    yield counter(names.ENGINE_ACCEPTED_TOKENS, counts.accepted_tokens)
    accepted = counter(names.ENGINE_ACCEPTED_PER_POSITION)
    for position, number in enumerate(counts.accepted_per_position):
        accepted.add_metric([str(position)], number)
    yield accepted
