"""A mock engine with a small prompt cache that it tells about, as ours does: events, snapshots, names of blocks."""

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
"""In a KV block: not a divisor of what routers cut text into, as nothing makes it one."""
STRIDE = 4
TEMPLATE = "<|user|>"
"""Before each message: prompts are not the text that routers see."""


@dataclass(eq=False)
class CachedEngine(MockEngine):
    """``cache_blocks`` KV blocks, of which the least recently used, and of one prompt the last, goes first."""

    cache_blocks: int = 400
    tells: bool = True
    """Answers name their blocks and events are sent; otherwise it says nothing but ``cached_tokens``."""
    hits: int = 0
    asked: int = 0
    """Blocks."""
    port_inside: InternalPort = field(default_factory=InternalPort)
    _cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    @property
    def config(self) -> EndpointConfig:
        inside = self.port_inside.url if self.tells else "http://127.0.0.1:9"
        return EndpointConfig(url=self.url, name=self.name, internal_url=inside)

    async def __aenter__(self) -> Self:
        await self.port_inside.start()
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.port_inside.stop()
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
        self.port_inside.change(stored - removed, removed)
        self.hits += hits
        self.asked += len(chain)
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
    """The names of the full blocks."""
    chain: list[bytes] = []
    for start in range(0, len(text) - CHARACTERS + 1, CHARACTERS):
        block = text[start : start + CHARACTERS].encode()
        chain.append(blake2b(block, key=chain[-1] if chain else b"", digest_size=8).digest())
    return chain
