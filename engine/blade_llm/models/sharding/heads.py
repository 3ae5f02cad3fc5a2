"""Which heads of attention a rank has."""

from __future__ import annotations

from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.shard import Shard


def query_heads(spec: AttentionSpec | LatentAttentionSpec, shard: Shard) -> range:
    """The query heads of a rank. Raises ``ValueError`` where they cannot be divided."""
    return shard.part_of(spec.num_heads)


def kv_heads(spec: AttentionSpec, shard: Shard) -> range:
    """The key heads that a rank's query heads attend to; one that several ranks share each of them has.

    Raises ``ValueError`` where a rank's queries would need parts of several.
    """
    if not divides_kv_heads(spec.num_kv_heads, shard.size):
        raise ValueError(f"{spec.num_kv_heads} key-value heads among {shard.size} ranks")
    if spec.num_kv_heads % shard.size == 0:
        return shard.part_of(spec.num_kv_heads)
    first = shard.rank * spec.num_kv_heads // shard.size
    return range(first, first + 1)


def divides_kv_heads(heads: int, size: int) -> bool:
    """Whether each of ``size`` ranks can have as many whole key heads, or each head as many ranks."""
    return heads % size == 0 or size % heads == 0
