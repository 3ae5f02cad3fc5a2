"""Mock engines that imitate vLLM and SGLang: their models, metrics and KV events."""

import itertools
import time
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from router_support.engine import MockEngine

VLLM_METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}.0
vllm:num_requests_running{{engine="1",model_name="m"}} 1.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}.0
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} 70.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}
vllm:cache_config_info{{block_size="16",cache_dtype="auto",num_gpu_blocks="250",num_cpu_blocks="None"}} 1.0
vllm:lora_requests_info{{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""}} 1.7e+09
vllm:lora_requests_info{{max_lora="4",running_lora_adapters="french, dutch",waiting_lora_adapters=""}} 1.8e+09
vllm:e2e_request_latency_seconds_bucket{{engine="0",le="+Inf",model_name="a \\"b\\" }} c"}} 12.0
"""
SGLANG_METRICS = """\
# HELP sglang:num_running_reqs The number of running requests
sglang:num_running_reqs{{model_name="m"}} {running}
sglang:num_queue_reqs{{model_name="m"}} {waiting}
sglang:token_usage{{model_name="m"}} {usage}
sglang:max_total_num_tokens{{model_name="m"}} 5000.0
"""


def models(*names: str, adapters: tuple[str, ...] = ()) -> str:
    """The body of ``/v1/models``."""
    base = [{"id": name, "object": "model", "root": name, "parent": None} for name in names]
    loras = [{"id": name, "object": "model", "root": f"/{name}", "parent": names[0]} for name in adapters]
    return msgspec.json.encode({"object": "list", "data": base + loras}).decode()


def set_metrics(engine: MockEngine, metrics: str, running: int, waiting: int, usage: float) -> None:
    """Set its metrics page."""
    engine.pages["/metrics"] = metrics.format(running=running, waiting=waiting, usage=usage)


class Publisher:
    """The ZeroMQ side of such an engine. ``maps``: events as newer versions write them, not as arrays."""

    def __init__(self, *, maps: bool) -> None:
        self._maps = maps
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.XPUB)  # a PUB that is notified of subscribers
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"
        self.numbers = itertools.count()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._context.destroy(linger=0)

    async def subscribed(self) -> None:
        assert await self._socket.recv() == b"\x01"

    def stored(self, *hashes: Any, size: int = 16, medium: str | None = "GPU") -> Any:
        tokens = list(range(size * len(hashes)))
        if self._maps:
            return {
                "type": "BlockStored",
                "block_hashes": hashes,
                "parent_block_hash": None,
                "token_ids": tokens,
                "block_size": size,
                "lora_id": None,
                "medium": medium,
                "lora_name": None,
                "group_idx": 0,
            }
        return ["BlockStored", hashes, None, tokens, size, None, *([medium] if medium != "GPU" else [])]

    def removed(self, *hashes: Any) -> Any:
        return {"type": "BlockRemoved", "block_hashes": hashes} if self._maps else ["BlockRemoved", hashes]

    def cleared(self) -> Any:
        return {"type": "AllBlocksCleared"} if self._maps else ["AllBlocksCleared"]

    def batch(self, *events: Any) -> bytes:
        batch = [time.time(), list(events)]
        return msgspec.msgpack.encode([*batch, 0] if self._maps else batch)

    async def publish(self, *events: Any) -> None:
        number = next(self.numbers).to_bytes(8, "big")
        await self._socket.send_multipart((b"", number, self.batch(*events)))
