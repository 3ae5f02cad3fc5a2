"""Compiles the operators' GPU kernels before the first request, every variant that a model can meet: Triton compiles on
first use, and in service that would make a request wait for seconds. Attention has its own ``warm``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from blade_llm.kernels.activate import activate
from blade_llm.kernels.backend import backend_of
from blade_llm.kernels.decoder_layers.weights import NormKind
from blade_llm.kernels.experts.packed import PackedExperts
from blade_llm.kernels.gather_inputs import gather_inputs
from blade_llm.kernels.gumbel_argmax import gumbel_argmax
from blade_llm.kernels.kv_rows import QuantizedRows
from blade_llm.kernels.layer_norm import add_layer_norm, layer_norm
from blade_llm.kernels.mark_invalid import mark_invalid
from blade_llm.kernels.moe_routing import route
from blade_llm.kernels.penalties import RowMasks, SparseBias, apply_penalties
from blade_llm.kernels.rms_norm import add_rms_norm, rms_norm
from blade_llm.kernels.rope_write_kv import rope_write_kv
from blade_llm.kernels.rope_write_latent import rope_write_latent
from blade_llm.kernels.top_k_top_p import top_k_top_p_thresholds
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.mlp import Activation
from blade_llm.spec.moe import RoutingSpec


def warm_layers(
    dtype: torch.dtype,
    k_cache: Tensor,
    *,
    hidden: int,
    inner: Sequence[int],
    num_heads: int,
    qk_norm: bool = False,
    unit_offset: bool = False,
    rows: QuantizedRows | None = None,
    v_cache: Tensor | None = None,
) -> None:
    """Norm, gate, and rotation with cache write. Nothing to do but on a GPU.

    ``dtype``: of the activations. ``k_cache``: [blocks, block_size, kv_heads, head_dim], any layer's; its last slot is
    overwritten, and that of ``v_cache``, where values have rows of another width. ``inner``: of the MLPs with a SiLU
    gate. ``num_heads``: 0 for latent attention, which has :func:`warm_latent`. ``unit_offset``: of the norms of queries
    and keys. ``rows``: how the caches are quantised.
    """
    if backend_of(k_cache) != "triton":
        return
    _, block_size, kv_heads, width = k_cache.shape
    head_dim = width if rows is None else rows.head_dim
    device = k_cache.device
    x = torch.zeros(1, hidden, dtype=dtype, device=device)
    weight = torch.ones(hidden, dtype=dtype, device=device)
    rms_norm(x, weight, 1e-6)
    add_rms_norm(x, x.clone(), weight, 1e-6)
    for width in inner:
        activate(torch.zeros(1, 2 * width, dtype=dtype, device=device), "silu", gated=True)
    if not num_heads:
        return
    angles = torch.zeros(1, head_dim // 2, device=device)
    slot_mapping = torch.full((1,), k_cache.shape[0] * block_size - 1, device=device)
    qkv = torch.zeros(1, (num_heads + 2 * kv_heads) * head_dim, dtype=dtype, device=device)
    norm = torch.ones(head_dim, dtype=dtype, device=device) if qk_norm else None
    where = slot_mapping, k_cache, k_cache if v_cache is None else v_cache, num_heads
    rope_write_kv(qkv, angles, angles, *where, norm, norm, unit_offset=unit_offset, rows=rows)


def warm_latent(dtype: torch.dtype, k_cache: Tensor, spec: LatentAttentionSpec) -> None:
    """What latent attention has beside attention itself. Nothing to do but on a GPU. Arguments as of
    :func:`warm_layers`."""
    if backend_of(k_cache) != "triton":
        return
    device, slots = k_cache.device, k_cache.shape[0] * k_cache.shape[1]
    norm = torch.ones(spec.latent_dim, dtype=dtype, device=device)
    angles = torch.zeros(1, spec.rope_dim // 2, device=device)
    whole = torch.zeros(1, spec.down_size, dtype=dtype, device=device)
    first, compressed = whole[:, : -spec.head_dim], whole[:, -spec.head_dim :]
    if spec.query_rank:
        rms_norm(first.contiguous(), torch.ones(spec.query_rank, dtype=dtype, device=device), 1e-6)
        first = torch.zeros(1, spec.query_size, dtype=dtype, device=device)
    width = spec.nope_dim + spec.rope_dim
    queries = first.as_strided((1, spec.num_heads, width), (first.stride(0), width, 1))
    rope_write_latent(
        queries,
        compressed,
        norm,
        1e-6,
        angles,
        angles,
        torch.full((1,), slots - 1, device=device),
        k_cache,
        torch.zeros(1, spec.num_heads, spec.head_dim, dtype=dtype, device=device),
        neighbours=spec.rope.pairing == "neighbours",
    )


def warm_moe(
    logits: Tensor, spec: RoutingSpec, bias: Tensor | None, experts: PackedExperts, dtype: torch.dtype
) -> None:
    """Routing, and the products of ``experts`` for few and for many tokens. Nothing to do but on a GPU.

    ``logits``: [tokens, num_experts] of the type that the layer's router yields; ``dtype``: of the activations.
    """
    if backend_of(logits) != "triton":
        return
    from blade_llm.kernels.experts.triton import TritonExperts

    route(logits, spec, bias)
    if isinstance(experts, TritonExperts):
        experts.warm(dtype, spec.top_k)


def warm_family(
    dtype: torch.dtype,
    device: torch.device,
    *,
    hidden: int,
    norms: Iterable[NormKind] = (),
    biases: bool = False,
    activations: Iterable[tuple[Activation, bool, int]] = (),
) -> None:
    """Norms and activations of other families than Llama's. Nothing to do but on a GPU.

    ``biases``: layer norms have one. ``activations``: each with whether it is a gate, and the width of its MLP.
    """
    x = torch.zeros(1, hidden, dtype=dtype, device=device)
    if backend_of(x) != "triton":
        return
    weight = torch.ones(hidden, dtype=dtype, device=device)
    for norm in norms:
        if norm == "layer":
            bias = torch.zeros_like(weight) if biases else None
            layer_norm(x, weight, bias, 1e-6)
            add_layer_norm(x, x.clone(), weight, bias, 1e-6)
        else:
            unit_offset = norm == "rms_unit_offset"
            rms_norm(x, weight, 1e-6, unit_offset=unit_offset)
            add_rms_norm(x, x.clone(), weight, 1e-6, unit_offset=unit_offset)
    for kind, gated, inner in activations:
        activate(torch.zeros(1, (2 if gated else 1) * inner, dtype=dtype, device=device), kind, gated=gated)


def warm_step(token_table: Tensor, block_table: Tensor, block_size: int, logits: Tensor) -> None:
    """The gather of inputs and every stage of sampling. Nothing to do but on a GPU.

    ``token_table``, ``block_table``: the slot tables themselves. ``logits``: [1, vocabulary] of the model's type.
    """
    if backend_of(logits) != "triton":
        return
    device, vocabulary = logits.device, logits.shape[1]
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    ends = torch.arange(2, device=device)
    gather_inputs(zero, zero, ends, token_table, block_table, block_size, 1)

    penalties = torch.tensor([[1.1, 0.1, 0.1]], device=device)
    bias = SparseBias(ends, zero, torch.zeros(1, dtype=torch.float64, device=device))
    masks = RowMasks(zero, torch.full((1, -(-vocabulary // 32)), -1, dtype=torch.int32, device=device))
    for what in ((None, None), (bias, None), (None, masks), (bias, masks)):
        wide = apply_penalties(logits, token_table, zero, zero, zero + 1, penalties, *what)
    one = torch.ones(1, device=device)
    thresholds = top_k_top_p_thresholds(wide, zero + 5, one * 0.9, one * 0.1)
    tokens = gumbel_argmax(wide, thresholds, torch.zeros(1, 2, dtype=torch.int64, device=device), zero)
    mark_invalid(logits, tokens)
