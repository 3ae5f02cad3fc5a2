"""Every metric of the engine's server: its type, its labels and its help, and the families made of them.

``docs/metrics.md`` is generated from it. Each metric also has the label ``model_name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from blade_protocol import metrics as names
from blade_protocol.metrics import MetricSpec

SPECS: Final = (
    MetricSpec(names.ENGINE_RUNNING, "gauge", "Requests in the running batch"),
    MetricSpec(names.ENGINE_WAITING, "gauge", "Requests waiting to be scheduled"),
    MetricSpec(names.ENGINE_KV_USAGE, "gauge", "Share of KV blocks in use", unit="ratio"),
    MetricSpec(names.ENGINE_KV_BLOCKS, "gauge", "KV blocks"),
    MetricSpec(
        names.ENGINE_MEMORY,
        "gauge",
        "Memory of the device that computes, by what it is for; free is what is left of the device or the host",
        ("device", "purpose"),
        "bytes",
    ),
    MetricSpec(names.ENGINE_PROMPT_TOKENS, "counter", "Prompt tokens received", unit="tokens"),
    MetricSpec(names.ENGINE_CACHED_TOKENS, "counter", "Prompt tokens found in the prefix cache", unit="tokens"),
    MetricSpec(names.ENGINE_GENERATION_TOKENS, "counter", "Tokens generated", unit="tokens"),
    MetricSpec(names.ENGINE_PREEMPTIONS, "counter", "Requests preempted"),
    MetricSpec(names.ENGINE_DRAFTS, "counter", "Times that a request got draft tokens"),
    MetricSpec(names.ENGINE_DRAFT_TOKENS, "counter", "Draft tokens", unit="tokens"),
    MetricSpec(names.ENGINE_ACCEPTED_TOKENS, "counter", "Draft tokens that were accepted", unit="tokens"),
    MetricSpec(
        names.ENGINE_ACCEPTED_PER_POSITION,
        "counter",
        "Draft tokens accepted at a position",
        ("position",),
        "tokens",
    ),
    MetricSpec(names.ENGINE_ADAPTERS, "gauge", "LoRA adapters with a name"),
    MetricSpec(names.ENGINE_ADAPTER_HITS, "counter", "Requests that found their adapter", ("tier",)),
    MetricSpec(names.ENGINE_ADAPTER_LOADS, "counter", "Adapters brought there", ("tier",)),
    MetricSpec(names.ENGINE_ADAPTER_EVICTIONS, "counter", "Adapters that left host memory for others"),
    MetricSpec(
        names.ENGINE_REQUESTS,
        "counter",
        "Requests finished, a prompt with several outputs once",
        ("finished_reason",),
    ),
    MetricSpec(
        names.ENGINE_IGNORED_FIELDS,
        "counter",
        "Fields of requests that were left out, most of them because nobody knows them",
    ),
    MetricSpec(
        names.ENGINE_UNKEPT_RESPONSES,
        "counter",
        "Responses that previous_response_id cannot name, as they could not be kept",
    ),
    MetricSpec(names.ENGINE_SPANS_DROPPED, "counter", "Spans of traces that never reached the collector."),
    MetricSpec(
        names.ENGINE_PAYLOADS_DROPPED,
        "counter",
        "Records of the payload log that were dropped, as it could not be written fast enough.",
    ),
    MetricSpec(names.ENGINE_IMAGES, "counter", "Images of requests that were fetched and decoded"),
    MetricSpec(names.ENGINE_IMAGE_BYTES, "counter", "Bytes of their files", unit="bytes"),
    MetricSpec(
        names.ENGINE_IMAGE_SECONDS,
        "counter",
        "Time that requests waited for their images to be fetched and decoded, before the engine got them",
        unit="seconds",
    ),
    MetricSpec(names.ENGINE_IMAGES_ENCODED, "counter", "Images that the vision tower made embeddings of"),
    MetricSpec(
        names.ENGINE_ENCODER_CACHE_HITS,
        "counter",
        "Images whose embeddings were there; those that the prefix cache has need none",
    ),
    MetricSpec(names.ENGINE_TTFT, "histogram", "Time from a request's arrival to its first token", unit="seconds"),
    MetricSpec(names.ENGINE_TPOT, "histogram", "Mean time between a response's tokens after the first", unit="seconds"),
    MetricSpec(names.ENGINE_ITL, "histogram", "Time between two steps that brought an output tokens", unit="seconds"),
    MetricSpec(names.ENGINE_E2E, "histogram", "Time from a request's arrival to its last token", unit="seconds"),
    MetricSpec(
        names.ENGINE_QUEUE_TIME,
        "histogram",
        "Time that a request waited in the engine for its first step",
        unit="seconds",
    ),
    MetricSpec(
        names.ENGINE_PREFILL_TIME, "histogram", "Time from a request's first step to its first token", unit="seconds"
    ),
    MetricSpec(names.ENGINE_DECODE_TIME, "histogram", "Time from a request's first token to its last", unit="seconds"),
    MetricSpec(
        names.ENGINE_INFERENCE_TIME, "histogram", "Time from a request's first step to its last token", unit="seconds"
    ),
    MetricSpec(names.ENGINE_PROMPT_LENGTH, "histogram", "Tokens of a prompt", unit="tokens"),
    MetricSpec(names.ENGINE_OUTPUT_LENGTH, "histogram", "Tokens of all outputs for a prompt", unit="tokens"),
    MetricSpec(names.ENGINE_LONGEST_OUTPUT, "histogram", "Tokens of the longest output for a prompt", unit="tokens"),
)
CATALOGUE: Final[Mapping[str, MetricSpec]] = {spec.name: spec for spec in SPECS}


def gauge(name: str, value: float | None = None) -> GaugeMetricFamily:
    """The gauge of this name. ``value``: its only one; None where it has labels."""
    spec = CATALOGUE[name]
    return GaugeMetricFamily(name, spec.text, value=value, labels=spec.labels if value is None else None)


def counter(name: str, value: float | None = None) -> CounterMetricFamily:
    """The counter of this name. ``value``: its only one; None where it has labels."""
    spec = CATALOGUE[name]
    return CounterMetricFamily(name, spec.text, value=value, labels=spec.labels if value is None else None)
