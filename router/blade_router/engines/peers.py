"""Following vLLM and SGLang: what their public port says, asked every few seconds."""

import time
from typing import Final, NamedTuple

import msgspec

from blade_protocol import paths
from blade_protocol.routing import EngineKind
from blade_router.asking import get
from blade_router.endpoints import Endpoint
from blade_router.engines.metrics import Sample, samples


class _Names(NamedTuple):
    """What an engine calls a thing; versions differ, and the first that is there counts."""

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    usage: tuple[str, ...]
    tokens: tuple[str, ...]
    """How many its KV cache has room for."""
    cache: tuple[str, ...] = ()
    """A sample whose labels say it instead."""
    adapters: tuple[str, ...] = ()
    """A sample whose labels list adapters, the newest one with the highest value."""

    @property
    def all(self) -> frozenset[str]:
        return frozenset(name for names in self for name in names)


_NAMES: Final[dict[EngineKind, _Names]] = {
    "vllm": _Names(
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        tokens=(),
        cache=("vllm:cache_config_info",),
        adapters=("vllm:lora_requests_info",),
    ),
    "sglang": _Names(
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
    """Of an adapter: the model it is for."""


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model] = []


_decode_models = msgspec.json.Decoder(_Models).decode


class PeerEngine:
    """One endpoint that is a vLLM or an SGLang server."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def ask(self) -> None:
        """Ask once for load and models. A number that is not there leaves what was known.

        Raises:
            UpstreamError, ValueError: no answer, or none that makes sense.
        """
        endpoint = self._endpoint
        adapters = self._take_metrics(await get(endpoint.url + paths.METRICS))
        models = _decode_models(await get(endpoint.url + paths.MODELS)).data
        adapters |= {model.id for model in models if model.parent}
        endpoint.adapters = frozenset(adapters)
        endpoint.models = frozenset(model.id for model in models) | endpoint.adapters
        endpoint.told_at = time.monotonic()

    def _take_metrics(self, page: bytes) -> set[str]:
        """The load; returns the adapters it mentions."""
        endpoint = self._endpoint
        names = _NAMES[endpoint.engine]
        found: dict[str, list[Sample]] = {}
        for sample in samples(page, names.all):
            found.setdefault(sample.name, []).append(sample)

        def first(wanted: tuple[str, ...]) -> list[Sample]:
            return next((found[name] for name in wanted if name in found), [])

        # Several samples of one name are several ranks: requests add up, shares do not.
        if running := first(names.running):
            endpoint.running = int(sum(sample.value for sample in running))
        if waiting := first(names.waiting):
            endpoint.waiting = int(sum(sample.value for sample in waiting))
        if usage := first(names.usage):
            endpoint.kv_usage = min(1.0, max(sample.value for sample in usage))
        tokens = sum(int(sample.value) for sample in first(names.tokens))
        tokens += sum(_tokens(sample.labels) for sample in first(names.cache))
        # Where there are events, they know better later on: what running requests hold caches nothing.
        if tokens and not (endpoint.kv_events and endpoint.cache_tokens):
            endpoint.cache_tokens = tokens
        latest = max(first(names.adapters), key=lambda sample: sample.value, default=None)
        if latest is None:
            return set()
        listed = (latest.labels.get(label, "").split(",") for label in _ADAPTER_LABELS)
        return {name.strip() for names in listed for name in names if name.strip()}


def _tokens(labels: dict[str, str]) -> int:
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return int(blocks) * int(size) if blocks.isdecimal() and size.isdecimal() else 0
