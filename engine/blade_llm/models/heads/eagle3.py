"""The head of EAGLE-3 (Li et al., arXiv 2503.01840), from a folder of its own: as its authors and SpecForge save it, or
in the format of vLLM's speculators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from blade_llm.models.config import KVSpec, ModelConfig, read_json
from blade_llm.models.dtypes import parse_dtype
from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.families.llama import LLAMA
from blade_llm.models.names import Names, tensor_map
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.prediction import PredictionSpec
from blade_llm.spec.tensors import LinearMap, LinearPart, TensorMap, TensorPart

_LAYERS = "eagle_aux_hidden_state_layer_ids"
_FORMAT = "transformer_layer_config"
"""The field of speculators that holds those of the layer."""


def read_eagle3(folder: Path, target: ModelConfig) -> ModelConfig:
    """The head in ``folder``, for ``target``.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for one that is of another kind or another model.
    """
    fields = read_json(folder, "config.json")
    path = folder / "config.json"
    if not isinstance(target.decoder, DecoderSpec):
        raise ModelFilesError(
            "transformers' modules, which compute this model, show no states between their layers: give --decode_algo "
            "sps, ngram or look_ahead"
        )
    if "draft_vocab_size" not in fields:
        raise ModelFilesError(
            f"{path} has no 'draft_vocab_size': this is no EAGLE-3 head; give another --draft.model, or --decode_algo "
            "sps for a draft model"
        )
    try:
        return _read(fields, target)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path}: {error}") from None
    except KeyError as error:
        raise ModelFilesError(f"{path}: {error} is missing") from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ModelFilesError(f"{path}: {error}") from None


def _read(fields: dict[str, Any], target: ModelConfig) -> ModelConfig:
    raw = RawConfig({**fields, **(fields.get(_FORMAT) or {})})
    decoder = _decoder(raw, target)
    attention = decoder.layers[0].grouped_attention
    return ModelConfig(
        architecture="Eagle3",
        decoder=decoder,
        tensors=_tensors(decoder, "layers.0" if _FORMAT in fields else "midlayer"),
        kv=KVSpec(1, attention.num_kv_heads, attention.head_dim),
        dtype=parse_dtype(str(raw.get("dtype") or raw.get("torch_dtype") or "float32")),
        eos_token_ids=(),
        bos_token_id=None,
    )


def _decoder(raw: RawConfig, target: ModelConfig) -> DecoderSpec:
    raw.require("num_hidden_layers", 1)
    if not (raw.get("eagle_config") or {}).get("use_aux_hidden_state", True):
        raise UnsupportedModelError("a head without states of several layers ('use_aux_hidden_state') is not supported")
    for name in ("hidden_size", "target_hidden_size"):
        if (size := raw.positive(name, target.hidden_size)) != target.hidden_size:
            raise ValueError(f"{name!r} is {size}, the model's {target.hidden_size}: this is the head of another model")
    vocabulary = raw.positive("vocab_size")
    own = raw.positive("draft_vocab_size", vocabulary)
    if own > vocabulary or vocabulary > target.vocab_size:
        raise ValueError(
            f"its vocabulary has {vocabulary} tokens, of which it drafts {own}, the model's has {target.vocab_size}: "
            "this is the head of another model"
        )
    spec = LLAMA.decoder(raw)
    norm = spec.layers[0].mlp_norm
    assert norm is not None
    prediction = PredictionSpec(
        kind="eagle3",
        norm=norm,
        after=_after(raw, target.num_layers),
        normalised_residual=raw.flag("norm_before_residual"),
        vocab_size=own,
    )
    return replace(
        spec,
        vocab_size=target.vocab_size,
        max_positions=target.max_position_embeddings,
        head=False,
        prediction=prediction,
    )


def _after(raw: RawConfig, layers: int) -> tuple[int, ...]:
    """After how many layers of the model each of the states is: near its first, its middle and its last."""
    given = raw.get(_LAYERS) or (raw.get("eagle_config") or {}).get(_LAYERS)
    after = tuple(given) if given else (2, layers // 2, layers - 3)
    if any(type(each) is not int or not 0 <= each < layers for each in after):
        raise ValueError(
            f"{_LAYERS!r} are {list(after)}; each must be at least 0 and below the model's {layers} layers"
        )
    return after


def _tensors(decoder: DecoderSpec, layer: str) -> TensorMap:
    size, prediction = decoder.hidden_size, decoder.prediction
    assert prediction is not None
    found = tensor_map(decoder, Names(layer=layer, final_norm="norm"))
    qkv = found.linears["layers.0.attention.qkv"]
    linears = {
        **found.linears,
        "layers.0.attention.qkv": replace(qkv, parts=tuple(replace(part, inputs=2 * size) for part in qkv.parts)),
        "prediction.combine": LinearMap((LinearPart("fc", size, len(prediction.after) * size),)),
        "prediction.head": LinearMap((LinearPart("lm_head", prediction.vocab_size, size),)),
    }
    tensors = {place: part for place, part in found.tensors.items() if place != "embedding"}
    tensors["prediction.state_norm.weight"] = TensorPart(f"{layer}.hidden_norm.weight", (size,))
    if prediction.vocab_size < decoder.vocab_size:
        tensors["prediction.tokens"] = TensorPart("d2t", (prediction.vocab_size,), integers=True)
    return TensorMap(linears, tensors, partial=True)
