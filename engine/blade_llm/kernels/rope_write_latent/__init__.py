"""Normalisation of latent vectors, rotation, and the write into the paged cache for multi-head latent attention (MLA:
DeepSeek-V2, arXiv 2405.04434, 2.1), in one pass over what the projections yield."""

from torch import Tensor

from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.rope_write_latent import torch as _reference


def rope_write_latent(
    queries: Tensor,
    compressed: Tensor,
    norm: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    cache: Tensor,
    out: Tensor,
    *,
    neighbours: bool = True,
) -> None:
    """Write latent vectors and rotated keys into ``cache``, and the rotated part of queries into ``out``.

    ``queries``: [tokens, heads, nope_dim + rope_dim], ``compressed``: [tokens, latent_dim + rope_dim]; rows of both may
    be parts of longer ones. ``norm``: [latent_dim], of RMS normalisation with ``eps``. ``cos``, ``sin``: [tokens,
    rope_dim / 2] fp32; ``neighbours``: each even dimension rotates with the next, else ``i`` with ``i + rope_dim / 2``;
    results are in the order of the latter. ``slot_mapping``: [tokens] int64, ``block * block_size + offset``.
    ``cache``: [blocks, block_size, 1, latent_dim + rope_dim], contiguous. ``out``: [tokens, heads, latent_dim +
    rope_dim], contiguous; its first latent_dim columns are left as they are.
    """
    arguments = queries, compressed, norm, eps, cos, sin, slot_mapping, cache, out, neighbours
    if backend_of(queries) == "triton":
        from blade_llm.kernels.rope_write_latent import triton

        triton.rope_write_latent(*arguments)
    else:
        _reference.rope_write_latent(*arguments)
