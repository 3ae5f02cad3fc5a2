"""The model's name on every metric, and other engines' names for the same metrics, for dashboards made for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from blade_protocol import metrics as names

Aliases = Literal["none", "vllm"]
"""Whose names a server exposes beside its own."""

VLLM: Final[dict[str, tuple[str, ...]]] = {
    names.ENGINE_RUNNING: ("num_requests_running",),
    names.ENGINE_WAITING: ("num_requests_waiting",),
    names.ENGINE_KV_USAGE: ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    names.ENGINE_PREEMPTIONS: ("num_preemptions",),
    names.ENGINE_PROMPT_TOKENS: ("prompt_tokens", "prefix_cache_queries"),
    names.ENGINE_CACHED_TOKENS: ("prefix_cache_hits", "prompt_tokens_cached"),
    names.ENGINE_GENERATION_TOKENS: ("generation_tokens",),
    names.ENGINE_REQUESTS: ("request_success",),
    names.ENGINE_TTFT: ("time_to_first_token_seconds",),
    names.ENGINE_TPOT: ("request_time_per_output_token_seconds",),
    names.ENGINE_ITL: ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    names.ENGINE_E2E: ("e2e_request_latency_seconds",),
    names.ENGINE_QUEUE_TIME: ("request_queue_time_seconds",),
    names.ENGINE_PREFILL_TIME: ("request_prefill_time_seconds",),
    names.ENGINE_DECODE_TIME: ("request_decode_time_seconds",),
    names.ENGINE_INFERENCE_TIME: ("request_inference_time_seconds",),
    names.ENGINE_PROMPT_LENGTH: ("request_prompt_tokens",),
    names.ENGINE_OUTPUT_LENGTH: ("request_generation_tokens",),
    names.ENGINE_LONGEST_OUTPUT: ("request_max_num_generation_tokens",),
    names.ENGINE_DRAFTS: ("spec_decode_num_drafts",),
    names.ENGINE_DRAFT_TOKENS: ("spec_decode_num_draft_tokens",),
    names.ENGINE_ACCEPTED_TOKENS: ("spec_decode_num_accepted_tokens",),
    names.ENGINE_ACCEPTED_PER_POSITION: ("spec_decode_num_accepted_tokens_per_pos",),
}
"""vLLM's names, of its present and earlier versions, behind ``vllm:``."""


class Named(Collector):
    """``collector``'s metrics with the label ``model_name``, and again by the names of ``aliases``."""

    def __init__(self, collector: Collector, model: str, aliases: Aliases) -> None:
        self._collector = collector
        self._labels = {"model_name": model}
        self._aliases = VLLM if aliases == "vllm" else {}

    def collect(self) -> Iterator[Metric]:
        for metric in self._collector.collect():
            yield _renamed(metric, metric.name, self._labels)
            for alias in self._aliases.get(metric.name, ()):
                yield _renamed(metric, f"vllm:{alias}", {**self._labels, "engine": "0"})

    def describe(self) -> Iterator[Metric]:
        return iter(())


def _renamed(metric: Metric, name: str, labels: Mapping[str, str]) -> Metric:
    """``metric`` by another name, with further labels."""
    found = Metric(name, metric.documentation, metric.type, metric.unit)
    found.samples = [
        sample._replace(name=name + sample.name.removeprefix(metric.name), labels={**labels, **sample.labels})
        for sample in metric.samples
    ]
    return found
