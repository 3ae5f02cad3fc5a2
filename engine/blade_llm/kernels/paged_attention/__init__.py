"""Causal attention of a ragged batch over a paged KV cache: prefill, chunked prefill, decode, and any mixture.

What a step's shape alone decides (grouping, masks, gather indices, splits) is prepared once and shared by all layers.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, TypeAlias, cast

from torch import Tensor

from blade_llm.kernels.backend import Backend, backend_of
from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.paged_attention import torch as _reference
from blade_llm.kernels.paged_attention.batch import RaggedBatch
from blade_llm.kernels.paged_attention.variant import PLAIN, AttentionVariant

__all__ = [
    "PLAIN",
    "AttentionVariant",
    "PreparedAttention",
    "RaggedBatch",
    "most_split_queries",
    "paged_attention",
    "prepare",
    "warm",
]

PreparedAttention: TypeAlias = Any
"""A step's shape as the implementation wants it; opaque to callers."""


class _Implementation(Protocol):
    def prepare(
        self,
        batch: RaggedBatch,
        block_table: Tensor,
        k_cache: Tensor,
        num_heads: int,
        deterministic: bool,
        rows: QuantizedRows | None,
    ) -> PreparedAttention: ...

    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        step: PreparedAttention,
        scale: float,
        window: int,
        variant: AttentionVariant,
    ) -> Tensor: ...


def prepare(
    batch: RaggedBatch,
    block_table: Tensor,
    k_cache: Tensor,
    num_heads: int,
    deterministic: bool = False,
    reference: bool = False,
    rows: QuantizedRows | None = None,
) -> PreparedAttention:
    """Prepare a step.

    ``block_table``: [slots, max_blocks] int32; ``k_cache``: any layer's, for its shape and type. ``deterministic``:
    what a sequence gets does not depend, to the last bit, on the others in the batch. ``rows``: how the caches'
    rows are quantised; None: they are not.

    On a GPU this neither computes nor waits: the kernels read ``slots``, ``query_starts`` and ``seq_lens`` when they
    run, so a step prepared on static tensors can be captured in a CUDA graph, its ``host_query_lens`` being part of the
    graph; ``host_seq_lens`` is not read. ``reference``: compute with torch even there, which does both.
    """
    implementation = _reference if reference else _implementation(backend_of(k_cache))
    return implementation.prepare(batch, block_table, k_cache, num_heads, deterministic, rows)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    step: PreparedAttention,
    scale: float,
    window: int = 0,
    variant: AttentionVariant = PLAIN,
) -> Tensor:
    """``softmax(scale * q k^T) v`` of each new token over its sequence up to itself, or as ``variant`` says.

    ``q``: [tokens, heads, head_dim]; ``heads`` is a multiple of ``kv_heads`` and consecutive query heads share one.
    ``k_cache``: [blocks, block_size, kv_heads, head_dim], contiguous; ``v_cache``: [blocks, block_size, kv_heads,
    v_dim], contiguous or the first elements of each head of ``k_cache`` (the latent vectors of DeepSeek-V2's attention,
    arXiv 2405.04434, are both). Quantised caches are as ``rows`` of :func:`prepare` packs them. The step's keys and
    values are already written; unused cache slots must be finite. ``window``: a token sees only so many, itself
    included; 0 for all. Without causality all of a sequence must be computed in one step. Returns
    [tokens, heads * v_dim].

    Raises :class:`ValueError` for options that do not go together.
    """
    if isinstance(step, _reference.Prepared):
        return _reference.paged_attention(q, k_cache, v_cache, step, scale, window, variant)
    return _implementation(backend_of(q)).paged_attention(q, k_cache, v_cache, step, scale, window, variant)


def most_split_queries(k_cache: Tensor, num_heads: int, rows: QuantizedRows | None = None) -> int:
    """New tokens that a sequence has at most whose context is divided among programs; 1 where such are all alike.
    ``rows``: see :func:`prepare`."""
    if backend_of(k_cache) != "triton":
        return 1
    import blade_llm.kernels.paged_attention.triton as kernels

    return kernels.most_split_queries(k_cache if rows is None else rows.unpacked_like(k_cache), num_heads)


def warm(
    k_cache: Tensor,
    block_table: Tensor,
    num_heads: int,
    windows: tuple[int, ...] = (0,),
    deterministic: bool = False,
    variant: AttentionVariant = PLAIN,
    v_cache: Tensor | None = None,
    drafts: bool = False,
    branches: bool = False,
    rows: QuantizedRows | None = None,
) -> None:
    """Compile every kernel that calls with these arguments can need, whatever the batch. Nothing to do but on a GPU.

    ``windows``: each ``window`` that some layer with this ``variant`` has. ``v_cache``: where values are of another
    width than keys, or part of them. ``drafts``: steps may verify draft tokens; ``branches``: and these may branch.
    ``rows``: see :func:`prepare`. The caches are read, not written.
    """
    if backend_of(k_cache) == "triton":
        import blade_llm.kernels.paged_attention.triton as kernels

        kernels.warm(k_cache, block_table, num_heads, windows, deterministic, variant, v_cache, drafts, branches, rows)


@cache
def _implementation(backend: Backend) -> _Implementation:
    name = f"{__name__}.{backend}"
    return cast(_Implementation, import_module(name if find_spec(name) else f"{__name__}.torch"))
