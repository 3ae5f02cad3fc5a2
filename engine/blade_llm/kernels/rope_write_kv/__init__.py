"""Rotary embedding (Su et al., arXiv 2104.09864) and the write of keys and values into the paged cache, in one pass
over the fused projection: both are small, both touch the same data. Models that normalise each head of queries and keys
first (QK-norm: Henry et al., arXiv 2010.04245, with RMS as in Qwen3) do that here too."""

from torch import Tensor

from blade_llm.kernels.backend import backend_of
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
) -> Tensor:
    """Rotate queries and keys by their positions' angles, store keys and values, return the queries.

    ``qkv``: [tokens, (num_heads + 2 * kv_heads) * head_dim], contiguous. ``cos``, ``sin``: [tokens, head_dim / 2] fp32;
    halves are rotated against each other (``i`` with ``i + head_dim / 2``), as in Hugging Face checkpoints.
    ``slot_mapping``: [tokens] int64, ``block * block_size + offset``. ``k_cache``, ``v_cache``:
    [blocks, block_size, kv_heads, head_dim], contiguous, written in place. ``q_norm`` and ``k_norm``: [head_dim], both
    or neither; with them each head is RMS normalised (``eps``) before the rotation. Returns
    [tokens, num_heads, head_dim].
    """
    arguments = qkv, cos, sin, slot_mapping, k_cache, v_cache, num_heads, q_norm, k_norm, eps
    backend = backend_of(qkv)
    if backend == "native":
        from blade_llm.kernels.rope_write_kv import native

        return native.rope_write_kv(*arguments)
    if backend == "triton":
        from blade_llm.kernels.rope_write_kv import triton

        return triton.rope_write_kv(*arguments)
    return _reference.rope_write_kv(*arguments)
