"""KV cache arithmetic: bytes of a block, tokens in a block, and how many blocks a number of bytes holds.

The server, the runner and ``blade_llm_check`` plan with the same functions, so that what the check promises is what the
engine does. No torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from blade_llm.cache.memory_limit import memory_limit_bytes
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTYPE_BYTES, DTypeName
from blade_llm.models.errors import NotEnoughMemoryError

BLOCK_SIZE: Final = 16
"""Tokens in one KV block."""
DEFAULT_KV_SHARE: Final = 4
"""Without ``--kv_cache_bytes`` the cache gets one part in this many of the memory limit."""


@dataclass(frozen=True, slots=True)
class KVCachePlan:
    """The size of a KV cache. ``blocks`` times ``block_bytes`` is at most the bytes it was given."""

    block_size: int
    """Tokens in a block."""
    block_bytes: int
    blocks: int
    max_model_len: int

    @property
    def tokens(self) -> int:
        """Tokens that fit in all blocks."""
        return self.blocks * self.block_size

    @property
    def concurrent_at_max_len(self) -> float:
        """Requests of ``max_model_len`` tokens that fit at once."""
        return self.blocks / self.blocks_of(self.max_model_len)

    def at_most(self, blocks: int, max_model_len: int) -> KVCachePlan:
        """No more of either; of several ranks, all must have what the least of them has."""
        return replace(self, blocks=min(self.blocks, blocks), max_model_len=min(self.max_model_len, max_model_len))

    def blocks_of(self, tokens: int) -> int:
        """Blocks that one request of ``tokens`` takes."""
        return -(-tokens // self.block_size)


def default_kv_cache_bytes(replicas: int = 1, limit: int | None = None) -> int:
    """The KV cache on CPU without ``--kv_cache_bytes``: a quarter of the memory limit, divided among the replicas."""
    return (memory_limit_bytes() if limit is None else limit) // DEFAULT_KV_SHARE // replicas


def kv_token_bytes(config: ModelConfig, dtype: DTypeName) -> int:
    """Bytes that the keys and values of one token take in all layers, the scales of quantised ones included."""
    return config.kv.token_bytes(DTYPE_BYTES[dtype])


def kv_block_bytes(config: ModelConfig, dtype: DTypeName, block_size: int = BLOCK_SIZE) -> int:
    """Bytes of one block of keys and values in all layers."""
    return kv_token_bytes(config, dtype) * block_size


def raise_kv_cache_bytes(needed: int) -> str:
    """Advice for a KV cache of ``needed`` bytes: the flag that says its size."""
    return f"raise --kv_cache_bytes to {needed}"


def plan_blocks(
    config: ModelConfig,
    dtype: DTypeName,
    *,
    kv_cache_bytes: int,
    max_model_len: int | None = None,
    block_size: int = BLOCK_SIZE,
    enlarge: Callable[[int], str] = raise_kv_cache_bytes,
) -> KVCachePlan:
    """Divide ``kv_cache_bytes`` into blocks; ``max_model_len`` is the model's own length when not given.

    ``enlarge`` says what to change for a cache of so many bytes.

    Raises :class:`NotEnoughMemoryError` when not even one request of ``max_model_len`` tokens fits, with the two values
    that would do, and ``ValueError`` when ``max_model_len`` is more than the model was made for.
    """
    length = max_model_len or config.max_position_embeddings
    if length > config.max_position_embeddings:
        raise ValueError(
            f"--max_model_len {length} is more than the model's own length; "
            f"lower it to at most {config.max_position_embeddings} ('max_position_embeddings' in config.json)"
        )
    block_bytes = kv_block_bytes(config, dtype, block_size)
    plan = KVCachePlan(
        block_size=block_size, block_bytes=block_bytes, blocks=kv_cache_bytes // block_bytes, max_model_len=length
    )
    needed = plan.blocks_of(length)
    if plan.blocks < needed:
        shorter = f", or lower --max_model_len to {plan.tokens}" if plan.blocks else ""
        raise NotEnoughMemoryError(
            f"one request of {length} tokens needs {needed * block_bytes} bytes of KV cache ({needed} blocks), "
            f"{kv_cache_bytes} bytes hold {plan.blocks}; {enlarge(needed * block_bytes)}{shorter}"
        )
    return plan
