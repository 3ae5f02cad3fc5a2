"""The layers for multi-token prediction that a model's own checkpoint brings, as the head that they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from blade_llm.models.config import ModelConfig, read_json
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.families.registry import family_of
from blade_llm.models.names import tensor_map
from blade_llm.models.quantized.config import read_forms, with_forms
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.prediction import PredictionSpec
from blade_llm.spec.tensors import LinearMap, LinearPart, TensorMap, TensorPart

_COUNTS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""Fields that say how many layers there are; the first one drafts all tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """What a checkpoint calls the modules of its first layer. ``{}``: the number of the model's layers."""

    layer: str
    embedding_norm: str
    state_norm: str
    projection: str
    norm: str
    states_first: bool = False
    zero_first: bool = False
    passes_normalised: bool = False


_DEEPSEEK: Final = _Layout(
    layer="model.layers.{}",
    embedding_norm="model.layers.{}.enorm",
    state_norm="model.layers.{}.hnorm",
    projection="model.layers.{}.eh_proj",
    norm="model.layers.{}.shared_head.norm",
    zero_first=True,
)
_MIMO: Final = _Layout(
    layer="model.mtp_layers.0",
    embedding_norm="model.mtp_layers.0.token_layernorm",
    state_norm="model.mtp_layers.0.hidden_layernorm",
    projection="model.mtp_layers.0.input_proj",
    norm="model.mtp_layers.0.final_layernorm",
    states_first=True,
    zero_first=True,
    passes_normalised=True,
)
_QWEN: Final = _Layout(
    layer="mtp.layers.0",
    embedding_norm="mtp.pre_fc_norm_embedding",
    state_norm="mtp.pre_fc_norm_hidden",
    projection="mtp.fc",
    norm="mtp.norm",
    passes_normalised=True,
)
_LAYOUTS: Final[Mapping[str, _Layout]] = {
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "MiMoForCausalLM": _MIMO,
    "Qwen3ForCausalLM": _QWEN,
    "Qwen3MoeForCausalLM": _QWEN,
}


def read_mtp(folder: Path, target: ModelConfig) -> ModelConfig:
    """The head in the checkpoint of ``target``, in ``folder``.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for a model that has none.
    """
    raw = RawConfig(read_json(folder, "config.json"))
    layout = _LAYOUTS.get(target.architecture)
    if layout is None or not isinstance(target.decoder, DecoderSpec):
        raise ModelFilesError(
            f"{folder}: {target.architecture} has no layers for multi-token prediction that are known here; they are "
            f"of {', '.join(_LAYOUTS)}: give --decode_algo eagle3, sps, ngram or look_ahead"
        )
    if not any(raw.count(name, 0) for name in _COUNTS):
        raise ModelFilesError(
            f"{folder}: this checkpoint has no layers for multi-token prediction ({' or '.join(_COUNTS)} in "
            "config.json): give --decode_algo eagle3, sps, ngram or look_ahead"
        )
    decoder = _decoder(target.decoder, layout)
    tensors = _tensors(decoder, layout, target, raw)
    return replace(target, decoder=decoder, tensors=tensors, kv=replace(target.kv, num_layers=1))


def find_mtp(folder: Path, target: ModelConfig) -> ModelConfig | None:
    """The same; None for a model that has none."""
    try:
        return read_mtp(folder, target)
    except ModelFilesError:
        return None


def _decoder(target: DecoderSpec, layout: _Layout) -> DecoderSpec:
    assert target.final_norm is not None
    prediction = PredictionSpec(
        kind="mtp",
        norm=target.final_norm,
        states_first=layout.states_first,
        zero_first=layout.zero_first,
        passes_normalised=layout.passes_normalised,
    )
    return replace(target, layers=target.layers[-1:], head=False, prediction_layers=0, prediction=prediction)


def _tensors(decoder: DecoderSpec, layout: _Layout, target: ModelConfig, raw: RawConfig) -> TensorMap:
    def name(module: str) -> str:
        return module.format(target.num_layers)

    size = decoder.hidden_size
    names = family_of(target.architecture).names_of(raw)
    found = tensor_map(decoder, replace(names, layer=name(layout.layer), final_norm=name(layout.norm)))
    own = {
        "prediction.embedding_norm.weight": TensorPart(f"{name(layout.embedding_norm)}.weight", (size,)),
        "prediction.state_norm.weight": TensorPart(f"{name(layout.state_norm)}.weight", (size,)),
    }
    projection = LinearMap((LinearPart(name(layout.projection), size, 2 * size),))
    if (forms := read_forms(raw)) is not None:
        found = with_forms(found, forms)  # the projection before the layer is never quantised
    tensors = {place: part for place, part in found.tensors.items() if place != "embedding"}
    return replace(
        found,
        linears={**found.linears, "prediction.projection": projection},
        tensors={**tensors, **own},
        partial=True,
    )
