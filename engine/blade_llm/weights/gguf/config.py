"""``config.json`` and ``generation_config.json`` from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.weights.gguf.names import ARCHITECTURES, ROPE_FACTORS

Metadata = Mapping[str, Any]

_LLAMA3_FACTORS: Final = (8.0, 32.0)
"""``factor`` of Llama 3.1 and of 3.2; their other numbers are equal."""
_LLAMA3: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_ABSENT: Final = {"expert_count": "experts", "attention.sliding_window": "sliding-window attention"}


def config_of(
    metadata: Metadata, tensors: Mapping[str, tuple[int, ...]], rope_factors: np.ndarray | None
) -> dict[str, Any]:
    """``tensors``: shapes by GGUF name, rows first; ``rope_factors``: what the file divides rotary frequencies by.

    Raises :class:`UnsupportedModelError`, and :class:`ModelFilesError` for metadata that is not there.
    """
    architecture = str(metadata.get("general.architecture"))
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"architecture {architecture!r} is not supported in GGUF; supported are {', '.join(ARCHITECTURES)}"
        )

    def value(name: str, default: Any = None) -> Any:
        found = metadata.get(f"{architecture}.{name}", default)
        if found is None:
            raise ModelFilesError(f"the metadata has no {architecture}.{name}; the file is no whole model")
        return found

    for name, meaning in _ABSENT.items():
        if metadata.get(f"{architecture}.{name}"):
            raise UnsupportedModelError(f"{meaning} ({architecture}.{name}) is not supported")
    if "token_embd.weight" not in tensors:
        raise ModelFilesError("tensor 'token_embd.weight' is missing; the file is no whole model")
    hidden, heads = int(value("embedding_length")), int(value("attention.head_count"))
    head_dim = int(value("attention.key_length", hidden // max(1, heads)))
    if int(value("rope.dimension_count", head_dim)) != head_dim:
        raise UnsupportedModelError(f"rotation of a part of each head ({architecture}.rope.dimension_count)")
    theta = float(value("rope.freq_base", 10_000.0))
    eos = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": tensors["token_embd.weight"][0],
        "hidden_size": hidden,
        "intermediate_size": int(value("feed_forward_length")),
        "num_hidden_layers": int(value("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(value("attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "max_position_embeddings": int(value("context_length")),
        "rms_norm_eps": float(value("attention.layer_norm_rms_epsilon")),
        "rope_theta": theta,
        "rope_scaling": _scaling(metadata, architecture, rope_factors, theta, head_dim),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": _integer(metadata.get("tokenizer.ggml.bos_token_id")),
        "eos_token_id": [int(each) for each in dict.fromkeys(eos) if each is not None],
    }


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _scaling(
    metadata: Metadata, architecture: str, factors: np.ndarray | None, theta: float, head_dim: int
) -> dict[str, Any] | None:
    kind = str(metadata.get(f"{architecture}.rope.scaling.type", "none"))
    if kind not in ("none", "linear"):
        raise UnsupportedModelError(f"rotary scaling {kind!r} ({architecture}.rope.scaling.type) is not supported")
    if factors is not None:
        for factor in _LLAMA3_FACTORS:
            if len(factors) == head_dim // 2 and np.allclose(_llama3(theta, head_dim, factor), factors, rtol=1e-3):
                return {"rope_type": "llama3", "factor": factor, **_LLAMA3}
        raise UnsupportedModelError(f"rotary factors ({ROPE_FACTORS}) other than those of Llama 3.1 and 3.2")
    if kind == "linear":
        return {"rope_type": "linear", "factor": float(metadata[f"{architecture}.rope.scaling.factor"])}
    return None


def _llama3(theta: float, head_dim: int, factor: float) -> np.ndarray:
    """What Llama 3.1 divides each frequency by: nothing for short waves, ``factor`` for long ones, and between them a
    mean of both."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high, length = _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"], 8192
    smooth = np.clip((length / wavelengths - low) / (high - low), 0.0, 1.0)
    return 1 / ((1 - smooth) / factor + smooth)
