"""A mock engine with a small prefix cache that publishes KV events, as ours does: events, snapshots, block hashes."""

import base64
import json
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Self

from blade_protocol.routing import EndpointConfig
from router_support.engine import MockEngine, Received
from router_support.internal_port import InternalPort

CHARACTERS = 60
"""Characters of a KV block: deliberately not a divisor of the routers' text blocks."""
STRIDE = 4
TEMPLATE = "<|user|>"
"""Chat template before each message: prompts are not the text that routers see."""


@dataclass(eq=False)
class CachedEngine(MockEngine):
    """A mock engine with ``cache_blocks`` KV blocks in LRU order; of one prompt the last block is evicted first."""

    cache_blocks: int = 400
    publishes_events: bool = True
    """Responses list their block hashes and events are sent; otherwise it reports only ``cached_tokens``."""
    hits: int = 0
    blocks_seen: int = 0
    """Blocks."""
    internal_port: InternalPort = field(default_factory=InternalPort)
    _cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    @property
    def config(self) -> EndpointConfig:
        inside = self.internal_port.url if self.publishes_events else "http://127.0.0.1:9"
        return EndpointConfig(url=self.url, name=self.name, internal_url=inside)

    async def __aenter__(self) -> Self:
        await self.internal_port.start()
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.internal_port.stop()
        await self.kill()

    def compute(self, request: Received) -> tuple[dict[str, Any], bytes]:
        chain = _chain("".join(TEMPLATE + message["content"] for message in json.loads(request.body)["messages"]))
        cache = self._cache
        hits = next((number for number, block in enumerate(chain) if block not in cache), len(chain))
        stored = {block for block in chain if block not in cache}
        for block in reversed(chain):
            cache[block] = None
            cache.move_to_end(block)
        removed = {cache.popitem(last=False)[0] for _ in range(len(cache) - self.cache_blocks)}
        self.internal_port.change(stored - removed, removed)
        self.hits += hits
        self.blocks_seen += len(chain)
        tokens = 16 * len(chain)
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": 1,
            "total_tokens": tokens + 1,
            "prompt_tokens_details": {"cached_tokens": 16 * hits},
        }
        if request.header("x-blade-kv-blocks") != ["1"]:
            return usage, b""
        names = base64.b64encode(b"".join(chain[STRIDE - 1 :: STRIDE]))
        return usage, b"x-blade-kv-blocks: %d:%b\r\n" % (STRIDE, names)


def _chain(text: str) -> list[bytes]:
    """The hashes of the full blocks."""
    chain: list[bytes] = []
    for start in range(0, len(text) - CHARACTERS + 1, CHARACTERS):
        block = text[start : start + CHARACTERS].encode()
        chain.append(blake2b(block, key=chain[-1] if chain else b"", digest_size=8).digest())
    return chain
