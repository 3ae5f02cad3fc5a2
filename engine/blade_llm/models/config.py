"""A model's shape, read from a Hugging Face ``config.json`` without importing transformers.

Everything above the kernels asks this one frozen record; torch is not needed to read it, so that the front process,
the scheduler and ``blade_llm_check`` can.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from blade_llm.models.errors import ModelFilesError

DTypeName = Literal["float32", "float16", "bfloat16"]
DTYPE_BYTES: dict[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base frequency, and the scaling rule as the config states it (``{}`` for none)."""

    theta: float = 10_000.0
    scaling: dict[str, Any] = field(default_factory=dict)


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

    def kv_bytes_per_token(self, dtype: DTypeName) -> int:
        """Bytes one token takes in the KV cache of all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * DTYPE_BYTES[dtype]


def load_model_config(model_dir: Path) -> ModelConfig:
    """Read ``config.json`` (and ``generation_config.json`` for end-of-sequence ids) in ``model_dir``.

    Raises :class:`ModelFilesError` when the folder or file is missing, is not JSON, or lacks a field.
    """
    raw = _read_json(model_dir, "config.json")
    architectures = raw.get("architectures") or []
    if not architectures:
        raise ModelFilesError(f"{model_dir / 'config.json'}: 'architectures' is missing or empty")
    architecture = str(architectures[0])
    try:
        hidden_size = int(raw["hidden_size"])
        num_heads = int(raw["num_attention_heads"])
        qwen2 = architecture == "Qwen2ForCausalLM"
        attention_bias = bool(raw.get("attention_bias", qwen2))
        return ModelConfig(
            architecture=architecture,
            vocab_size=int(raw["vocab_size"]),
            hidden_size=hidden_size,
            intermediate_size=int(raw["intermediate_size"]),
            num_layers=int(raw["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
            head_dim=int(raw.get("head_dim") or hidden_size // num_heads),
            max_position_embeddings=int(raw["max_position_embeddings"]),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope=_rope(raw),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            attention_bias=attention_bias,
            output_bias=attention_bias and not qwen2,
            mlp_bias=bool(raw.get("mlp_bias", False)),
            dtype=_dtype(raw),
            eos_token_ids=_eos_token_ids(model_dir, raw),
            bos_token_id=raw.get("bos_token_id"),
        )
    except KeyError as error:
        raise ModelFilesError(f"{model_dir / 'config.json'}: {error} is missing") from None
    except (TypeError, ValueError) as error:
        raise ModelFilesError(f"{model_dir / 'config.json'}: {error}") from None


def _read_json(model_dir: Path, name: str) -> dict[str, Any]:
    if not model_dir.is_dir():
        raise ModelFilesError(
            f"model folder {model_dir} does not exist; give --model a folder with config.json and *.safetensors"
        )
    path = model_dir / name
    if not path.is_file():
        raise ModelFilesError(f"{path} is missing; {model_dir} is not a Hugging Face model folder")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelFilesError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelFilesError(f"{path} must hold a JSON object")
    return raw


def _rope(raw: dict[str, Any]) -> RopeConfig:
    """transformers 5 writes ``rope_parameters``; earlier ones ``rope_theta`` and ``rope_scaling``."""
    parameters = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    theta = float(parameters.pop("rope_theta", raw.get("rope_theta") or 10_000.0))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    return RopeConfig(theta=theta, scaling={} if kind == "default" else parameters)


def _dtype(raw: dict[str, Any]) -> DTypeName:
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32")
    if name not in DTYPE_BYTES:
        raise ValueError(f"dtype {name!r} is not supported; use one of {', '.join(DTYPE_BYTES)}")
    return name  # type: ignore[return-value]


def _eos_token_ids(model_dir: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    found: list[int] = []
    sources = [raw]
    if (model_dir / "generation_config.json").is_file():
        sources.append(_read_json(model_dir, "generation_config.json"))
    for source in sources:
        value = source.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        found.extend(int(token) for token in ids if int(token) not in found)
    return tuple(found)
