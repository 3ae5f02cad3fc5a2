"""The part of the tensor map that multi-head latent attention has, by the names of DeepSeek's checkpoints."""

from __future__ import annotations

from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.tensors import LinearMap, LinearPart, TensorPart


def map_latent_attention(
    linears: dict[str, LinearMap],
    tensors: dict[str, TensorPart],
    place: str,
    prefix: str,
    spec: LatentAttentionSpec,
    hidden: int,
) -> None:
    """Add the attention at ``place``, whose modules are below ``prefix``.

    Below ``place``: ``down`` (queries or their latent vector, then latent vector and shared key), ``query_norm`` and
    ``query_up`` where queries have a latent vector, ``latent_norm``, ``output``, and ``kv_up``, which is among the
    tensors: it is multiplied head by head, as floats whatever the checkpoint has.
    """
    module = f"{prefix}.self_attn"
    kv_down = LinearPart(f"{module}.kv_a_proj_with_mqa", spec.head_dim, hidden)
    if spec.query_rank:
        query = LinearPart(f"{module}.q_a_proj", spec.query_rank, hidden)
        tensors[f"{place}.query_norm.weight"] = TensorPart(f"{module}.q_a_layernorm.weight", (spec.query_rank,))
        query_up = LinearPart(f"{module}.q_b_proj", spec.query_size, spec.query_rank)
        linears[f"{place}.query_up"] = LinearMap((query_up,))
    else:
        query = LinearPart(f"{module}.q_proj", spec.query_size, hidden)
    linears[f"{place}.down"] = LinearMap((query, kv_down), spec.down_bias)
    tensors[f"{place}.latent_norm.weight"] = TensorPart(f"{module}.kv_a_layernorm.weight", (spec.latent_dim,))
    rows = spec.num_heads * (spec.nope_dim + spec.value_dim)
    tensors[f"{place}.kv_up"] = TensorPart(f"{module}.kv_b_proj.weight", (rows, spec.latent_dim))
    output = LinearPart(f"{module}.o_proj", hidden, spec.num_heads * spec.value_dim)
    linears[f"{place}.output"] = LinearMap((output,), spec.output_bias)
