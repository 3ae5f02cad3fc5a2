"""The tensor map of a vision tower, from its spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from blade_llm.models.layer_names.norm import map_norm
from blade_llm.spec.tensors import LinearMap, LinearPart, TensorMap, TensorPart, Variant
from blade_llm.spec.vision.tower import MergerSpec, TowerFamily, VisionSpec

PREFIX: Final = "model."
"""What all names begin with in checkpoints that transformers 5 saved, and in Qwen3-VL's; older ones have it in none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionNames:
    """Modules of a checkpoint, below :data:`PREFIX`. Those of a layer are below ``layer``, of a merger below it."""

    patches: str = "visual.patch_embed.proj"
    positions: str = "visual.pos_embed.weight"
    """The whole name of the tensor."""
    class_token: str = ""
    """The whole name of the tensor."""
    layer: str = "visual.blocks.{}"
    attention_norm: str = "norm1"
    qkv: tuple[str, ...] = ("attn.qkv",)
    """Of queries, keys and values, or the one that holds all of them."""
    output: str = "attn.proj"
    mlp_norm: str = "norm2"
    up: tuple[str, ...] = ("mlp.fc1",)
    """Gate and up, or up alone where there is no gate."""
    down: str = "mlp.fc2"
    scales: tuple[str, str] = ("", "")
    """The whole names below ``layer`` of what attention and MLP are multiplied by."""
    merger: str = "visual.merger"
    deepstack: str = "visual.deepstack_merger_list.{}"
    merger_parts: tuple[str, str, str] = ("ln_q", "mlp.0", "mlp.2")
    """Norm, up and down."""


NAMES: Final[Mapping[TowerFamily, VisionNames]] = {
    "qwen2_vl": VisionNames(),
    "qwen2_5_vl": VisionNames(up=("mlp.gate_proj", "mlp.up_proj"), down="mlp.down_proj"),
    "qwen3_vl": VisionNames(
        up=("mlp.linear_fc1",), down="mlp.linear_fc2", merger_parts=("norm", "linear_fc1", "linear_fc2")
    ),
    "internvl": VisionNames(
        patches="vision_tower.embeddings.patch_embeddings.projection",
        positions="vision_tower.embeddings.position_embeddings",
        class_token="vision_tower.embeddings.cls_token",
        layer="vision_tower.encoder.layer.{}",
        attention_norm="layernorm_before",
        qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        output="attention.projection_layer",
        mlp_norm="layernorm_after",
        scales=("lambda_1", "lambda_2"),
        merger="multi_modal_projector",
        merger_parts=("layer_norm", "linear_1", "linear_2"),
    ),
}


def vision_tensors(spec: VisionSpec) -> TensorMap:
    """Where the checkpoint has the tensors of ``spec``, by their place in the tower:

    ``patches.weight`` (the kernel of a convolution) and ``patches.bias``, ``positions``, ``class_token``;
    of layer ``i``, below ``layers.i.``: ``attention_norm``, ``attention.qkv``, ``attention.output``,
    ``attention_scale``, ``mlp_norm``, ``mlp.up`` (gate and up where there is a gate), ``mlp.down``, ``mlp_scale``;
    of the mergers, below ``merger.`` and ``deepstack.i.``: ``norm``, ``up``, ``down``. A norm has ``.weight`` and
    perhaps ``.bias`` below it.

    Give it the names of a checkpoint (:meth:`~blade_llm.spec.tensors.TensorMap.found_in`): both forms are known.
    """
    names = NAMES[spec.family]
    found = _tensors(spec, names, PREFIX)
    older = Variant((f"{names.patches}.weight",), lambda: _tensors(spec, names, ""))
    return TensorMap(found.linears, found.tensors, variant=older, partial=True)


def _tensors(spec: VisionSpec, names: VisionNames, prefix: str) -> TensorMap:
    linears: dict[str, LinearMap] = {}
    tensors: dict[str, TensorPart] = {}
    time = (spec.temporal_patch_size,) if spec.family != "internvl" else ()
    kernel = (spec.width, 3, *time, spec.patch_size, spec.patch_size)
    tensors["patches.weight"] = TensorPart(f"{prefix}{names.patches}.weight", kernel)
    if spec.patch_bias:
        tensors["patches.bias"] = TensorPart(f"{prefix}{names.patches}.bias", (spec.width,))
    if spec.positions is not None:
        shape: tuple[int, ...] = (spec.positions.side**2 + spec.class_token, spec.width)
        if spec.class_token:
            shape = (1, *shape)
        tensors["positions"] = TensorPart(prefix + names.positions, shape)
    if spec.class_token:
        tensors["class_token"] = TensorPart(prefix + names.class_token, (1, 1, spec.width))
    for index in range(spec.num_layers):
        _layer(linears, tensors, f"layers.{index}", prefix + names.layer.format(index), spec, names)
    _merger(linears, tensors, "merger", prefix + names.merger, spec, spec.merger, names)
    if spec.deepstack_merger is not None:
        for index in range(spec.levels):
            module = prefix + names.deepstack.format(index)
            _merger(linears, tensors, f"deepstack.{index}", module, spec, spec.deepstack_merger, names)
    return TensorMap(linears, tensors)


def _layer(
    linears: dict[str, LinearMap],
    tensors: dict[str, TensorPart],
    place: str,
    module: str,
    spec: VisionSpec,
    names: VisionNames,
) -> None:
    width, inner = spec.width, spec.mlp.inner
    map_norm(tensors, f"{place}.attention_norm", f"{module}.{names.attention_norm}", spec.norm, width)
    map_norm(tensors, f"{place}.mlp_norm", f"{module}.{names.mlp_norm}", spec.norm, width)
    size = 3 * width // len(names.qkv)
    qkv = tuple(LinearPart(f"{module}.{name}", size, width) for name in names.qkv)
    linears[f"{place}.attention.qkv"] = LinearMap(qkv, spec.qkv_bias)
    linears[f"{place}.attention.output"] = LinearMap((LinearPart(f"{module}.{names.output}", width, width),), True)
    up = tuple(LinearPart(f"{module}.{name}", inner, width) for name in names.up)
    linears[f"{place}.mlp.up"] = LinearMap(up, spec.mlp.bias)
    linears[f"{place}.mlp.down"] = LinearMap((LinearPart(f"{module}.{names.down}", width, inner),), spec.mlp.bias)
    if spec.layer_scale:
        for what, name in zip(("attention_scale", "mlp_scale"), names.scales, strict=True):
            tensors[f"{place}.{what}"] = TensorPart(f"{module}.{name}", (width,))


def _merger(
    linears: dict[str, LinearMap],
    tensors: dict[str, TensorPart],
    place: str,
    module: str,
    spec: VisionSpec,
    merger: MergerSpec,
    names: VisionNames,
) -> None:
    norm, up, down = names.merger_parts
    size = spec.merged * spec.width
    map_norm(tensors, f"{place}.norm", f"{module}.{norm}", merger.norm, size if merger.norm_merged else spec.width)
    linears[f"{place}.up"] = LinearMap((LinearPart(f"{module}.{up}", merger.inner, size),), True)
    linears[f"{place}.down"] = LinearMap((LinearPart(f"{module}.{down}", spec.hidden_size, merger.inner),), True)
