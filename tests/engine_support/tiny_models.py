"""Small random models in the Hugging Face layout, and what transformers says about them."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from engine_support.kept_models import KeptModels
from examples.families.weights import randomize
from safetensors.torch import save_file

from blade_llm.config import EngineConfig
from blade_llm.models.config import load_model_config
from blade_llm.models.tensors import expected_tensors
from blade_llm.weights.sources import DummyWeights

SHAPE: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "eos_token_id": 1,
    "bos_token_id": 0,
}


_KEPT = KeptModels()


def save_model(folder: Path, family: str, dtype: torch.dtype = torch.float32, **overrides: Any) -> Any:
    """Save a random ``qwen2`` or ``llama`` model and return transformers' own of it, in fp32."""
    key = family, dtype, repr(sorted(overrides.items()))
    return _KEPT.save(key, folder, lambda made: _make_model(made, family, dtype, overrides))


def _make_model(folder: Path, family: str, dtype: torch.dtype, overrides: dict[str, Any]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    config_class, model_class = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
    }[family]
    torch.manual_seed(20240607)
    model = model_class(config_class(**{**SHAPE, **overrides}))
    randomize(model)
    # Saved from a copy: converting a model also converts its table of rotary frequencies, which loading does not.
    copy.deepcopy(model).to(dtype).save_pretrained(folder)
    return load_reference(folder)


def copy_with_weights(model: Path, folder: Path) -> None:
    """Copy a folder that has everything but weights, and write these."""
    shutil.copytree(model, folder)
    config = load_model_config(model)
    source = DummyWeights(config, torch.device("cpu"), torch.float32)
    tensors = {name: source.tensor(name).clone() for name in expected_tensors(config)}
    save_file(tensors, folder / "model.safetensors")


def load_reference(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' model of a folder, in evaluation mode."""
    import transformers

    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    auto = "AutoModelForImageTextToText" if name.endswith("ForConditionalGeneration") else "AutoModelForCausalLM"
    return getattr(transformers, auto).from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def engine_config(folder: Path, **overrides: Any) -> EngineConfig:
    """fp32, one thread, a small cache."""
    values: dict[str, Any] = {
        "model": str(folder),
        "served_names": ("tiny",),
        "dtype": "float32",
        "max_num_seqs": 8,
        "max_batch_tokens": 256,
        "kv_cache_bytes": 64 << 20,
        "num_threads": 1,
    }
    return EngineConfig(**{**values, **overrides})


@torch.no_grad()
def reference_logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    """transformers' logits, [tokens, vocabulary]."""
    logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits


@torch.no_grad()
def reference_greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """transformers' greedy continuation, without stopping at any token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]
