"""A model's shape, read from a Hugging Face ``config.json`` without importing transformers.

Everything above the kernels reads this one frozen record; torch is not needed for it, so that the API server,
the scheduler and ``blade_llm_check`` can.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from blade_llm.models.dtypes import DTYPE_BYTES, DTypeName, parse_dtype
from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.families import require_supported

__all__ = ["DTYPE_BYTES", "ROPE_SCALINGS", "DTypeName", "ModelConfig", "RopeConfig", "load_model_config", "read_json"]

ROPE_SCALINGS: Final[dict[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""The scaling rules that are computed, and the numbers each one needs."""


DEFAULT_THETA: Final = 10_000.0


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base frequency, and the scaling rule."""

    theta: float = DEFAULT_THETA
    scaling: dict[str, Any] = field(default_factory=dict)
    """``{}`` for none, else ``rope_type`` (a key of :data:`ROPE_SCALINGS`) and that rule's numbers as floats."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only transformer."""

    architecture: str
    """First entry of ``architectures``, e.g. ``Qwen2ForCausalLM``."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    """Bias on q, k and v (Qwen2: yes, Llama: as configured)."""
    output_bias: bool
    """Bias on the attention output projection."""
    mlp_bias: bool
    dtype: DTypeName
    """The checkpoint's own type."""
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None


def load_model_config(model_dir: Path) -> ModelConfig:
    """Read ``config.json`` (and ``generation_config.json`` for end-of-sequence ids) in ``model_dir``.

    Raises :class:`ModelFilesError` when the folder or file is missing, is not JSON, or a field is missing or senseless,
    and :class:`UnsupportedModelError` for what the model needs and no code here computes.
    """
    raw = read_json(model_dir, "config.json")
    path = model_dir / "config.json"
    architectures = raw.get("architectures") or []
    if not isinstance(architectures, list) or not architectures:
        raise ModelFilesError(f"{path}: 'architectures' is missing or empty")
    architecture = str(architectures[0])
    try:
        family = require_supported(architecture)
        _refuse_unsupported(raw)
        return _build(architecture, family, raw, _eos_token_ids(model_dir, raw))
    except UnsupportedModelError as error:
        own_code = "; the code that comes with it ('auto_map') is never run" if raw.get("auto_map") else ""
        raise UnsupportedModelError(f"{path}: {error}{own_code}") from None
    except KeyError as error:
        raise ModelFilesError(f"{path}: {error} is missing") from None
    except (TypeError, ValueError) as error:
        raise ModelFilesError(f"{path}: {error}") from None


def _build(architecture: str, family: str, raw: dict[str, Any], eos_token_ids: tuple[int, ...]) -> ModelConfig:
    hidden_size = _positive(raw, "hidden_size")
    num_heads = _positive(raw, "num_attention_heads")
    num_kv_heads = _positive(raw, "num_key_value_heads", default=num_heads)
    if num_heads % num_kv_heads:
        raise ValueError(f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}")
    if raw.get("head_dim") is None and hidden_size % num_heads:
        raise ValueError(f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}")
    head_dim = _positive(raw, "head_dim", default=hidden_size // num_heads)
    if head_dim % 2:
        raise ValueError(f"head_dim {head_dim} is odd; rotary embedding needs pairs")
    # Qwen2 always has bias on q, k, v and nowhere else, whatever its config says; Llama is as configured.
    qwen2 = family == "qwen2"
    attention_bias = qwen2 or bool(raw.get("attention_bias", False))
    vocab_size = _positive(raw, "vocab_size")
    bos_token_id = raw.get("bos_token_id")
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_positive(raw, "intermediate_size"),
        num_layers=_positive(raw, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=_positive(raw, "max_position_embeddings"),
        rms_norm_eps=_above_zero(raw, "rms_norm_eps", 1e-6),
        rope=_rope(raw),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=attention_bias,
        output_bias=attention_bias and not qwen2,
        mlp_bias=bool(raw.get("mlp_bias", False)) and not qwen2,
        dtype=parse_dtype(str(raw.get("dtype") or raw.get("torch_dtype") or "float32")),
        eos_token_ids=tuple(token for token in eos_token_ids if 0 <= token < vocab_size),  # others are never sampled
        bos_token_id=None if bos_token_id is None else int(bos_token_id),
    )


def _positive(raw: dict[str, Any], name: str, default: int | None = None) -> int:
    value = raw[name] if default is None else raw.get(name)
    if value is None and default is not None:
        return default
    if type(value) is not int or value < 1:
        raise ValueError(f"{name!r} must be a positive integer, not {value!r}")
    return value


def _above_zero(raw: dict[str, Any], name: str, default: float | None = None) -> float:
    """The finite number ``name``, above 0. Without ``default`` it must be there."""
    value = raw[name] if default is None else raw.get(name, default)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ValueError(f"{name!r} must be a finite number above 0, not {value!r}")
    return float(value)


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    """Refuse what would compute without an error and be wrong."""
    if raw.get("quantization_config"):
        raise UnsupportedModelError(
            "quantised checkpoints ('quantization_config') are not supported yet; use the original"
        )
    if raw.get("use_sliding_window") or "sliding_attention" in (raw.get("layer_types") or ()):
        raise UnsupportedModelError("sliding-window attention ('use_sliding_window') is not supported yet")
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModelError(f"activation {activation!r} ('hidden_act') is not supported; only 'silu' is")
    if float(raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedModelError("'partial_rotary_factor' other than 1 is not supported")


def read_json(model_dir: Path, name: str) -> dict[str, Any]:
    """The JSON object in file ``name`` of a model folder. Raises :class:`ModelFilesError`."""
    if not model_dir.is_dir():
        raise ModelFilesError(
            f"model folder {model_dir} does not exist; give --model a folder with config.json and *.safetensors"
        )
    path = model_dir / name
    if not path.is_file():
        raise ModelFilesError(f"{path} is missing; {model_dir} is not a Hugging Face model folder")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFilesError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelFilesError(f"{path} must hold a JSON object")
    return raw


def _rope(raw: dict[str, Any]) -> RopeConfig:
    """transformers 5 writes ``rope_parameters``; earlier ones ``rope_theta`` and ``rope_scaling``, with ``type``."""
    parameters = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = _theta(parameters.pop("rope_theta", None), raw)
    legacy_kind = parameters.pop("type", "default")
    kind = str(parameters.pop("rope_type", legacy_kind))
    if kind not in ROPE_SCALINGS or any(isinstance(value, dict) for value in parameters.values()):
        raise UnsupportedModelError(
            f"rope scaling {kind!r} is not supported; supported are {', '.join(ROPE_SCALINGS)}"
            if kind not in ROPE_SCALINGS
            else "rope parameters that differ between layer types are not supported"
        )
    if kind == "default":
        return RopeConfig(theta=theta)
    scaling = {name: _above_zero(parameters, name) for name in ROPE_SCALINGS[kind]}
    if kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        raise ValueError(
            f"'low_freq_factor' {scaling['low_freq_factor']:g} must be below 'high_freq_factor' "
            f"{scaling['high_freq_factor']:g}"
        )
    return RopeConfig(theta=theta, scaling={"rope_type": kind, **scaling})


def _theta(own: Any, raw: dict[str, Any]) -> float:
    """The base frequency, whichever way it is written."""
    for value in (own, raw.get("rope_theta")):
        if value is not None:
            return _above_zero({"rope_theta": value}, "rope_theta")
    return DEFAULT_THETA


def _eos_token_ids(model_dir: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    found: list[int] = []
    sources = [raw]
    if (model_dir / "generation_config.json").is_file():
        sources.append(read_json(model_dir, "generation_config.json"))
    for source in sources:
        value = source.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        found.extend(int(token) for token in ids if int(token) not in found)
    return tuple(found)
