"""Watching external engines, vLLM and SGLang: their public port is polled every few seconds."""

from typing import Final, NamedTuple

import msgspec

from blade_protocol import paths
from blade_protocol.routing import EngineKind
from blade_router.endpoints.endpoint import Endpoint
from blade_router.engines.prometheus_text import Sample, samples
from blade_router.http.upstream.get import get


class _MetricNames(NamedTuple):
    """Metric names of an engine; they differ by version, and the first that is there counts."""

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    usage: tuple[str, ...]
    tokens: tuple[str, ...]
    """Capacity of its KV cache."""
    cache: tuple[str, ...] = ()
    """A sample whose labels give the capacity instead."""
    adapters: tuple[str, ...] = ()
    """A sample whose labels list adapters, the newest one with the highest value."""

    @property
    def all(self) -> frozenset[str]:
        return frozenset(name for names in self for name in names)


_METRIC_NAMES: Final[dict[EngineKind, _MetricNames]] = {
    "vllm": _MetricNames(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        tokens=(),
        cache=("vllm:cache_config_info",),
        adapters=("vllm:lora_requests_info",),
    ),
    "sglang": _MetricNames(
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        usage=("sglang:token_usage",),
        tokens=("sglang:max_total_num_tokens",),
    ),
}
_ADAPTER_LABELS: Final = ("running_lora_adapters", "waiting_lora_adapters")


class _Model(msgspec.Struct, frozen=True):
    id: str
    parent: str | None = None
    """The base model of an adapter."""


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model] = []


_decode_models = msgspec.json.Decoder(_Models).decode


class ExternalEngine:
    """One endpoint that is a vLLM or an SGLang server."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def poll(self) -> None:
        """Get load and models once. A missing number leaves the previous one.

        Raises:
            UpstreamError, ValueError: no response, or a malformed one.
        """
        endpoint = self._endpoint
        metrics_adapters = self._apply_metrics(await get(endpoint.url + paths.METRICS))
        models = _decode_models(await get(endpoint.url + paths.MODELS)).data
        adapters = frozenset(metrics_adapters) | {model.id for model in models if model.parent}
        endpoint.report.update(models=adapters | {model.id for model in models}, adapters=adapters)

    def _apply_metrics(self, page: bytes) -> set[str]:
        """Apply the load metrics; returns the adapters in them."""
        endpoint = self._endpoint
        names = _METRIC_NAMES[endpoint.config.engine]
        found: dict[str, list[Sample]] = {}
        for sample in samples(page, names.all):
            found.setdefault(sample.name, []).append(sample)

        def first(wanted: tuple[str, ...]) -> list[Sample]:
            return next((found[name] for name in wanted if name in found), [])

        # Several samples of one name are several ranks: requests add up, ratios do not.
        running, waiting, usage = first(names.running), first(names.waiting), first(names.usage)
        tokens = sum(int(sample.value) for sample in first(names.tokens))
        tokens += sum(_tokens(sample.labels) for sample in first(names.cache))
        # KV events, where there are any, give a better figure later: blocks of running requests cache nothing.
        known_better = bool(endpoint.config.kv_events and endpoint.report.cache_tokens)
        endpoint.report.update(
            running=int(sum(sample.value for sample in running)) if running else None,
            waiting=int(sum(sample.value for sample in waiting)) if waiting else None,
            kv_usage=min(1.0, max(sample.value for sample in usage)) if usage else None,
            cache_tokens=tokens if tokens and not known_better else None,
            partial=True,
        )
        latest = max(first(names.adapters), key=lambda sample: sample.value, default=None)
        if latest is None:
            return set()
        listed = (latest.labels.get(label, "").split(",") for label in _ADAPTER_LABELS)
        return {name.strip() for names in listed for name in names if name.strip()}


def _tokens(labels: dict[str, str]) -> int:
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdecimal() and size.isdecimal() else 0
