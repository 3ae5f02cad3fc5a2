"""Rotary embedding (Su et al., arXiv 2104.09864) and the write of keys and values into the paged cache, in one pass
over the fused projection: both are small, both touch the same data. Models that normalise each head of queries and keys
first (QK-norm: Henry et al., arXiv 2010.04245, with RMS as in Qwen3) do that here too."""

from torch import Tensor, cat

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.rms_norm import rms_norm
from blade_llm.kernels.rope_write_kv import torch as _reference


def rope_write_kv(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    num_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    *,
    unit_offset: bool = False,
    rows: QuantizedRows | None = None,
) -> Tensor:
    """Rotate queries and keys by their positions' angles, store keys and values, return the queries.

    ``qkv``: [tokens, (num_heads + 2 * kv_heads) * head_dim], contiguous. ``cos``, ``sin``: [tokens, head_dim / 2] fp32;
    halves are rotated against each other (``i`` with ``i + head_dim / 2``), as in Hugging Face checkpoints.
    ``slot_mapping``: [tokens] int64, ``block * block_size + offset``. ``k_cache``, ``v_cache``:
    [blocks, block_size, kv_heads, head_dim], contiguous, written in place. ``q_norm`` and ``k_norm``: [head_dim], both
    or neither; with them each head is RMS normalised (``eps``, ``unit_offset``: as in
    :func:`~blade_llm.kernels.rms_norm.rms_norm`) before the rotation. As [num_heads * head_dim] and
    [kv_heads * head_dim] they normalise all queries of a token together, and all keys (OLMo 2, arXiv 2501.00656).
    ``rows``: how keys and values are quantised, once they are what they would be otherwise; the caches are uint8 then,
    with ``rows.row_bytes``, and ``rows.values.row_bytes``, in place of ``head_dim``.
    Returns [tokens, num_heads, head_dim].
    """
    head_dim = k_cache.shape[3] if rows is None else rows.head_dim
    if q_norm is not None and k_norm is not None and len(q_norm) != head_dim:
        qkv = _normalise_projections(qkv, q_norm, k_norm, eps, unit_offset)
        q_norm, k_norm = None, None
    arguments = qkv, cos, sin, slot_mapping, k_cache, v_cache, num_heads, q_norm, k_norm, eps, unit_offset, rows
    backend = backend_of(qkv)
    if backend == "native":
        from blade_llm.kernels.rope_write_kv import native

        return native.rope_write_kv(*arguments)
    if backend == "triton":
        from blade_llm.kernels.rope_write_kv import triton

        return triton.rope_write_kv(*arguments)
    return _reference.rope_write_kv(*arguments)


def _normalise_projections(qkv: Tensor, q_norm: Tensor, k_norm: Tensor, eps: float, unit_offset: bool) -> Tensor:
    """``qkv`` with all queries and all keys of each token normalised."""
    first_key, first_value = len(q_norm), len(q_norm) + len(k_norm)
    queries, keys, values = qkv[:, :first_key], qkv[:, first_key:first_value], qkv[:, first_value:]
    normed = (
        rms_norm(part.contiguous(), weight, eps, unit_offset=unit_offset)
        for part, weight in ((queries, q_norm), (keys, k_norm))
    )
    return cat((*normed, values), dim=1)
