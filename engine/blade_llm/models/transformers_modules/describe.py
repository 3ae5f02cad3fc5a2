"""What the engine must know of a model of transformers: asked of its modules, by a forward pass without numbers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from blade_llm.models.config import Description, KVSpec
from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.quantized.config import require_plain
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.transformers_modules.attention import connect, softcap_of, unsupported
from blade_llm.models.transformers_modules.build import build_shapes, read_config
from blade_llm.models.transformers_modules.modules import given_hidden, run_decoder
from blade_llm.models.transformers_modules.tensors import modules_tensor_map
from blade_llm.spec.modules import ModulesSpec

TOKENS = 8
"""Of the forward pass."""


@dataclass
class Recorder:
    """Notes what attention is asked for, layer by layer."""

    layers: list[int] = field(default_factory=list)
    shapes: set[tuple[int, int, int]] = field(default_factory=set)
    """Query heads, key heads, size of a head."""
    windows: list[int] = field(default_factory=list)
    softcaps: dict[int, float] = field(default_factory=dict)
    """By layer."""

    def __call__(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int,
        options: Mapping[str, Any],
    ) -> Tensor:
        if reason := unsupported(options):
            raise UnsupportedModelError(f"{reason} is not supported")
        if key.shape != value.shape or query.shape[-1] != key.shape[-1]:
            raise UnsupportedModelError(
                f"queries, keys and values of {query.shape[-1]}, {key.shape[-1]} and {value.shape[-1]} dimensions are "
                "not supported; the KV cache has one size (latent attention, MLA, is of this kind)"
            )
        if query.shape[0] != 1 or query.shape[2] != TOKENS or key.shape[2] != TOKENS:
            raise UnsupportedModelError("attention to other than the tokens of the sequence is not supported")
        self.layers.append(layer)
        self.shapes.add((query.shape[1], key.shape[1], query.shape[3]))
        self.windows.append(window)
        self.softcaps[layer] = softcap_of(options)
        return torch.empty_like(query).transpose(1, 2)


def describe_modules(architecture: str, raw: RawConfig) -> Description:
    """Raises :class:`UnsupportedModelError` for what the paged KV cache cannot serve, with the reason."""
    require_plain(raw, "served through transformers' modules")
    fields = {**raw.fields, **dict.fromkeys(raw.nulls)}
    config = read_config(architecture, fields)
    _require_decoder(architecture, config)
    model = _build(architecture, config)
    _require_plain_layers(architecture, model)
    recorder = _forward(architecture, model)
    windows = _windows(architecture, config, recorder)
    heads, kv_heads, head_dim = recorder.shapes.pop()
    if heads % kv_heads or head_dim % 2:
        raise UnsupportedModelError(
            f"{heads} query heads, {kv_heads} key heads of {head_dim} dimensions are not supported"
        )
    spec = ModulesSpec(
        raw=fields,
        vocab_size=model.get_input_embeddings().weight.shape[0],
        hidden_size=int(config.hidden_size),
        max_positions=int(config.max_position_embeddings),
        tied=model.get_output_embeddings().weight is model.get_input_embeddings().weight,
        num_heads=heads,
        windows=windows,
        softcaps=tuple(recorder.softcaps[layer] for layer in range(len(windows))),
        widest=_widest(model),
    )
    return spec, modules_tensor_map(model), KVSpec(len(windows), kv_heads, head_dim)


def _require_decoder(architecture: str, config: PretrainedConfig) -> None:
    if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        raise UnsupportedModelError(f"{architecture} has an encoder or cross attention, which is not supported")
    if config.get_text_config() is not config:
        raise UnsupportedModelError(f"{architecture} is more than a language model (it has a 'text_config')")
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = {str(each.get("rope_type")) for each in (rope, *rope.values()) if isinstance(each, Mapping)}
    if changing := kinds & {"dynamic", "longrope"}:
        raise UnsupportedModelError(
            f"rope {changing.pop()!r} of {architecture} is not supported through transformers: its angles depend on "
            "the longest sequence of a step, and cached keys would not fit later ones"
        )
    for name in ("hidden_size", "max_position_embeddings", "num_hidden_layers"):
        if not isinstance(getattr(config, name, None), int):
            raise UnsupportedModelError(f"{architecture} has no {name!r}; its positions or layers are of another kind")


def _require_plain_layers(architecture: str, model: Any) -> None:
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModelError(f"{architecture} has recurrent layers (Mamba, linear attention), not supported")
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.RNNBase):
            raise UnsupportedModelError(f"{architecture} has {type(module).__name__} {name!r}, which is not supported")
        if type(module).__name__.endswith("Experts"):
            raise UnsupportedModelError(
                f"{architecture} has a mixture of experts, which is not supported through transformers: its "
                "checkpoints have the experts one by one, its modules together"
            )
    if "position_ids" not in inspect.signature(model.get_decoder().forward).parameters:
        raise UnsupportedModelError(
            f"{architecture} is not supported through transformers: it takes no 'position_ids' (ALiBi is of this kind)"
        )


def _build(architecture: str, config: PretrainedConfig) -> Any:
    try:
        return build_shapes(config)
    except Exception as error:  # of any kind: it is the model's own code
        raise UnsupportedModelError(
            f"{architecture} is not supported: transformers cannot build it with attention of ours, or not of these "
            f"fields ({type(error).__name__}: {error})"
        ) from error


def _forward(architecture: str, model: Any) -> Recorder:
    recorder = Recorder()
    connect(model, recorder)
    ids = torch.zeros(TOKENS, dtype=torch.int64, device="meta")
    try:
        with torch.inference_mode():
            hidden = run_decoder(model.get_decoder(), ids, ids)
            with given_hidden(model):
                model(inputs_embeds=hidden[None], use_cache=False)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{architecture}: {error}") from None
    except Exception as error:  # of any kind: it is the model's own code
        raise UnsupportedModelError(
            f"{architecture} is not supported through transformers: its modules cannot compute tokens of several "
            f"sequences in one row ({type(error).__name__}: {error})"
        ) from error
    return recorder


def _windows(architecture: str, config: PretrainedConfig, recorder: Recorder) -> tuple[int, ...]:
    """Of each layer, by index."""
    count = int(config.num_hidden_layers)
    if sorted(recorder.layers) != list(range(count)):
        raise UnsupportedModelError(
            f"{architecture} is not supported through transformers: {len(recorder.layers)} of its {count} layers call "
            "transformers' attention interface, and each must once (others compute attention, or something else, "
            "themselves)"
        )
    if len(recorder.shapes) != 1:
        raise UnsupportedModelError(f"{architecture}: layers with different numbers of heads are not supported")
    windows = [window for _, window in sorted(zip(recorder.layers, recorder.windows, strict=True))]
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return tuple(windows)
    if odd := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        raise UnsupportedModelError(f"{architecture}: layers of kind {odd[0]!r} ('layer_types') are not supported")
    expected = [int(config.sliding_window or 0) if kind == "sliding_attention" else 0 for kind in kinds]
    if windows != expected:
        raise UnsupportedModelError(f"{architecture}: windows {windows} are not what 'layer_types' says, {expected}")
    return tuple(windows)


def _widest(model: nn.Module) -> int:
    """Twice the outputs of all matrices of a layer: modules keep what they compute in between, too."""
    widths: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        found = re.match(r".*?\.\d+\.", name)
        if found and parameter.ndim == 2:
            widths[found[0]] = widths.get(found[0], 0) + 2 * parameter.shape[0]
    return max(widths.values())
