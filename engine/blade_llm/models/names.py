"""The tensor map of a decoder, from its specs and the names that a family's checkpoints use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from blade_llm.models.layer_names.latent_attention import map_latent_attention
from blade_llm.models.layer_names.moe import MoENames, map_fused, map_moe
from blade_llm.models.layer_names.norm import map_norm
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.mlp import MLPSpec
from blade_llm.spec.moe import MoESpec
from blade_llm.spec.tensors import LinearMap, LinearPart, TensorMap, TensorPart, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Modules of a checkpoint; the defaults are Llama's. Those of a layer are below ``layer``."""

    embedding: str = "model.embed_tokens"
    positions: str = ""
    token_types: str = ""
    embedding_norm: str = ""
    layer: str = "model.layers.{}"
    attention_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """Of queries, keys and values, or the one that holds all of them."""
    qkv_layout: Literal["stacked", "grouped"] = "stacked"
    """Of the one that holds all: queries, keys, values; or for each key head its queries, itself, its value."""
    head_norms: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm")
    output: str = "self_attn.o_proj"
    attention_output_norm: str = "post_self_attn_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    """Gate and up, or the one that holds both, or up alone where there is no gate."""
    down: str = "mlp.down_proj"
    moe: MoENames = field(default_factory=MoENames)
    """In place of ``up`` and ``down`` in mixture-of-experts layers."""
    mlp_output_norm: str = "post_mlp_layernorm"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    classifier_dense: str = ""
    classifier: str = "score"
    transposed: bool = False
    """Linear layers inside of layers are stored as [in, out]."""
    prediction: tuple[str, ...] = ()
    """What names of layers for multi-token prediction begin with, where these do not follow the others."""
    vision: tuple[str, ...] = ()
    """What names of a vision tower's and its projector's tensors begin with."""
    other: Names | None = None
    """What other checkpoints of the family call everything; their name of the embedding tells them."""


def tensor_map(spec: DecoderSpec, names: Names | None = None) -> TensorMap:
    """Where the checkpoint has the tensors of ``spec``, by their place in the model:

    ``embedding``, ``positions``, ``token_types``, ``embedding_norm``, ``head``, ``classifier.dense``,
    ``classifier.output``, ``norm``;
    of layer ``i``, below ``layers.i.``: ``attention_norm``,
    ``attention.qkv``, ``attention.q_norm``, ``attention.k_norm``, ``attention.output``, ``attention_output_norm``,
    ``mlp_norm``, ``mlp.up`` (gate and up where there is a gate), ``mlp.down``, ``mlp_output_norm``. A norm has
    ``.weight`` and perhaps ``.bias`` below it. :func:`map_moe` says what mixtures of experts have below ``mlp``,
    :func:`map_latent_attention` what latent attention has below ``attention``.
    """
    names = names or Names()
    linears: dict[str, LinearMap] = {}
    tensors: dict[str, TensorPart] = {}
    tensors["embedding"] = TensorPart(f"{names.embedding}.weight", (spec.vocab_size, spec.hidden_size))
    if spec.positions is not None:
        count, first = spec.positions.rows, spec.positions.offset
        rows = range(first, count) if first else None
        tensors["positions"] = TensorPart(f"{names.positions}.weight", (count, spec.hidden_size), rows)
    if spec.token_types:
        tensors["token_types"] = TensorPart(f"{names.token_types}.weight", (spec.token_types, spec.hidden_size))
    if spec.embedding_norm is not None:
        map_norm(tensors, "embedding_norm", names.embedding_norm, spec.embedding_norm, spec.hidden_size)
    orders: dict[AttentionSpec, _HeadRows] = {}
    for index, layer in enumerate(spec.layers):
        place, prefix, attention = f"layers.{index}", names.layer.format(index), layer.attention
        _layer(linears, tensors, place, prefix, layer, spec.hidden_size, names)
        if isinstance(attention, LatentAttentionSpec):
            map_latent_attention(linears, tensors, f"{place}.attention", prefix, attention, spec.hidden_size)
            continue
        if attention not in orders:
            orders[attention] = _HeadRows(attention, names)
        _attention(linears, tensors, place, prefix, attention, spec.hidden_size, names, orders[attention])
    if spec.final_norm is not None:
        map_norm(tensors, "norm", names.final_norm, spec.final_norm, spec.hidden_size)
    if spec.head and not spec.tied:
        head = LinearPart(names.head, spec.vocab_size, spec.hidden_size, unit_rows=spec.head_unit_rows)
        linears["head"] = LinearMap((head,), spec.head_bias)
    if spec.classifier is not None:
        size, bias = spec.hidden_size, spec.classifier.bias
        linears["classifier.output"] = LinearMap((LinearPart(names.classifier, 1, size),), bias)
        if spec.classifier.dense:
            linears["classifier.dense"] = LinearMap((LinearPart(names.classifier_dense, size, size),), bias)
    after = range(len(spec.layers), len(spec.layers) + spec.prediction_layers)
    skipped = (*(f"{names.layer.format(index)}." for index in after), *names.prediction)
    prefix = names.embedding.partition(".")[0] + "."
    other, variant = names.other, _fused(spec, names)
    if other is not None:
        assert variant is None, "checkpoints differ in one way"
        variant = Variant((f"{other.embedding}.weight",), lambda: tensor_map(spec, other))
    return TensorMap(linears, tensors, prefix, skipped, variant, vision=names.vision)


def _fused(spec: DecoderSpec, names: Names) -> Variant | None:
    """A checkpoint with one tensor for all experts of a layer."""
    layers = {names.layer.format(i): (i, layer.mlp) for i, layer in enumerate(spec.layers)}
    mixtures = {prefix: (i, mlp) for prefix, (i, mlp) in layers.items() if isinstance(mlp, MoESpec)}

    def make() -> TensorMap:
        linears: dict[str, LinearMap] = {}
        tensors: dict[str, TensorPart] = {}
        for prefix, (index, mlp) in mixtures.items():
            map_fused(linears, tensors, f"layers.{index}.mlp", prefix, mlp, spec.hidden_size, names.moe)
        return TensorMap(linears, tensors)

    fused = tuple(f"{prefix}.{name}" for prefix in mixtures for name in names.moe.fused[1:])
    return Variant(fused, make) if fused else None


class _HeadRows:
    """Which rows of the checkpoint's projections are wanted, in the order of the kernels. Layers with the same
    attention share them."""

    def __init__(self, spec: AttentionSpec, names: Names) -> None:
        self.order = None if spec.rope is None else spec.rope.order(spec.head_dim)
        """Of the dimensions of queries and keys; None for the order that is there."""
        dim, heads, kv_heads, share = (
            spec.head_dim,
            spec.num_heads,
            spec.num_kv_heads,
            spec.num_heads // spec.num_kv_heads,
        )
        turned, plain = self.order or range(dim), range(dim)
        fused = len(names.qkv) == 1
        if fused and names.qkv_layout == "grouped":
            size = (share + 2) * dim
            queries = [head // share * size + head % share * dim for head in range(heads)]
            keys = [head * size + share * dim for head in range(kv_heads)]
            values = [start + dim for start in keys]
        else:
            queries = [head * dim for head in range(heads)]
            keys = [fused * spec.query_size + head * dim for head in range(kv_heads)]
            values = [start + fused * spec.kv_size for start in keys]
        q = tuple(start + i for start in queries for i in turned)
        k = tuple(start + i for start in keys for i in turned)
        v = tuple(start + i for start in values for i in plain)
        self.rows = tuple(None if _in_order(rows) else rows for rows in ((q + k + v,) if fused else (q, k, v)))
        """Of each of ``names.qkv``; None for all as they are."""


def _in_order(rows: tuple[int, ...]) -> bool:
    return rows == tuple(range(len(rows)))


def _layer(
    linears: dict[str, LinearMap],
    tensors: dict[str, TensorPart],
    place: str,
    prefix: str,
    layer: LayerSpec,
    hidden: int,
    names: Names,
) -> None:
    """All but the attention."""
    mlp = layer.mlp
    norms = {
        "attention_norm": (names.attention_norm, layer.attention_norm),
        "attention_output_norm": (names.attention_output_norm, layer.attention_output_norm),
        "mlp_norm": (names.mlp_norm, layer.mlp_norm),
        "mlp_output_norm": (names.mlp_output_norm, layer.mlp_output_norm),
    }
    for what, (name, spec) in norms.items():
        if spec is not None:
            map_norm(tensors, f"{place}.{what}", f"{prefix}.{name}", spec, hidden)
    if isinstance(mlp, MoESpec):
        map_moe(linears, tensors, f"{place}.mlp", prefix, mlp, hidden, names.moe)
        return
    linears[f"{place}.mlp.up"] = LinearMap(_up(prefix, mlp, hidden, names), mlp.bias)
    down = LinearPart(f"{prefix}.{names.down}", hidden, mlp.inner, transposed=names.transposed)
    linears[f"{place}.mlp.down"] = LinearMap((down,), mlp.bias)


def _attention(
    linears: dict[str, LinearMap],
    tensors: dict[str, TensorPart],
    place: str,
    prefix: str,
    attention: AttentionSpec,
    hidden: int,
    names: Names,
    rows: _HeadRows,
) -> None:
    linears[f"{place}.attention.qkv"] = LinearMap(_qkv(prefix, attention, hidden, names, rows), attention.qkv_bias)
    if attention.head_norm is not None:
        for what, name in zip(("q_norm", "k_norm"), names.head_norms, strict=True):
            heads = 1
            if attention.head_norm_whole:
                heads = attention.num_heads if what == "q_norm" else attention.num_kv_heads
            dim = attention.head_dim
            order = rows.order and tuple(head * dim + i for head in range(heads) for i in rows.order)
            norm = TensorPart(f"{prefix}.{name}.weight", (heads * dim,), order)
            tensors[f"{place}.attention.{what}.weight"] = norm
    output = LinearPart(f"{prefix}.{names.output}", hidden, attention.query_size, transposed=names.transposed)
    linears[f"{place}.attention.output"] = LinearMap((output,), attention.output_bias)


def _qkv(prefix: str, spec: AttentionSpec, hidden: int, names: Names, rows: _HeadRows) -> tuple[LinearPart, ...]:
    sizes = (spec.query_size, spec.kv_size, spec.kv_size)
    return tuple(
        LinearPart(f"{prefix}.{name}", size, hidden, some, names.transposed)
        for name, size, some in zip(names.qkv, sizes if len(names.qkv) == 3 else (sum(sizes),), rows.rows, strict=True)
    )


def _up(prefix: str, spec: MLPSpec, hidden: int, names: Names) -> tuple[LinearPart, ...]:
    size = 2 * spec.inner if spec.gated and len(names.up) == 1 else spec.inner
    return tuple(LinearPart(f"{prefix}.{name}", size, hidden, transposed=names.transposed) for name in names.up)
