"""How ranks divide the linear layers of one decoder layer."""

from __future__ import annotations

from collections.abc import Mapping

from blade_llm.models.sharding.heads import kv_heads, query_heads
from blade_llm.models.sharding.linears import ColumnParallel, Division, Replicated, RowParallel
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import LayerSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.moe import MoESpec
from blade_llm.spec.shard import Shard


def layer_divisions(layer: LayerSpec, shard: Shard) -> Mapping[str, Division]:
    """By the layer's place below its decoder layer, as :func:`~blade_llm.models.names.tensor_map` names them; all
    experts are ``mlp.experts``, also where a rank has only some of them. ``layer``: the whole one."""
    attention, mlp = layer.attention, layer.mlp
    found = _latent(attention, shard) if isinstance(attention, LatentAttentionSpec) else _grouped(attention, shard)
    if isinstance(mlp, MLPSpec):
        return {**found, **_mlp("mlp", mlp, shard)}
    return {**found, **_mixture(mlp, shard)}


def divided_rows(spec: AttentionSpec | LatentAttentionSpec, place: str, shard: Shard) -> range | None:
    """A rank's rows of the tensor at ``place`` below its layer that is no linear layer; None: it has all of them.

    Divided are, by heads, the matrix that makes keys and values of latent vectors, and the weights of norms of all
    heads together.
    """
    if isinstance(spec, LatentAttentionSpec):
        by_head = place == "attention.kv_up"
        return _span(query_heads(spec, shard), spec.nope_dim + spec.value_dim) if by_head else None
    if spec.head_norm_whole and place == "attention.q_norm.weight":
        return _span(query_heads(spec, shard), spec.head_dim)
    if spec.head_norm_whole and place == "attention.k_norm.weight":
        return _span(kv_heads(spec, shard), spec.head_dim)
    return None


def _grouped(spec: AttentionSpec, shard: Shard) -> dict[str, Division]:
    queries = _span(query_heads(spec, shard), spec.head_dim)
    keys = _span(kv_heads(spec, shard), spec.head_dim)
    begins = spec.query_size, spec.query_size + spec.kv_size
    qkv = (queries, *(_shifted(keys, begin) for begin in begins))
    return {"attention.qkv": ColumnParallel(qkv), "attention.output": RowParallel(queries, shard.rank == 0)}


def _latent(spec: LatentAttentionSpec, shard: Shard) -> dict[str, Division]:
    heads = query_heads(spec, shard)
    queries, results = _span(heads, spec.nope_dim + spec.rope_dim), _span(heads, spec.value_dim)
    output = RowParallel(results, shard.rank == 0)
    if spec.query_rank:
        up = ColumnParallel((queries,))
        return {"attention.down": Replicated(), "attention.query_up": up, "attention.output": output}
    down = ColumnParallel((queries, _shifted(range(spec.head_dim), spec.query_size)))
    return {"attention.down": down, "attention.output": output}


def _mlp(place: str, spec: MLPSpec, shard: Shard) -> dict[str, Division]:
    own = shard.part_of(spec.inner)
    up = (own, _shifted(own, spec.inner)) if spec.gated else (own,)
    return {f"{place}.up": ColumnParallel(up), f"{place}.down": RowParallel(own, shard.rank == 0)}


def _mixture(spec: MoESpec, shard: Shard) -> dict[str, Division]:
    shared = {} if spec.shared is None else _mlp("mlp.shared", spec.shared, shard)
    if shard.expert_parallel:
        return {"mlp.experts.up": Replicated(), "mlp.experts.down": Replicated(), **shared}
    return {**_mlp("mlp.experts", MLPSpec(spec.inner), shard), **shared}


def _span(heads: range, width: int) -> range:
    """The rows of heads that have ``width`` each."""
    return range(heads.start * width, heads.stop * width)


def _shifted(rows: range, by: int) -> range:
    return range(rows.start + by, rows.stop + by)
