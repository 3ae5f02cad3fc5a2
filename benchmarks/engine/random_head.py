"""A head of EAGLE-3 with random weights for the model of ``make bench``, in the sizes of published ones: a layer as
wide as the model's, and an output matrix of 32,000 tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file

from benchmarks.peers.shapes import QWEN2

_TOKENS: Final = 32_000


def random_head(folder: Path) -> Path:
    """Write it into ``folder`` unless it is there; returns the folder."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    config = QWEN2.config
    size, inner, dim = config["hidden_size"], config["intermediate_size"], QWEN2.head_dim
    queries, kv = dim * config["num_attention_heads"], dim * config["num_key_value_heads"]
    shapes = {
        "fc.weight": (size, 3 * size),
        "lm_head.weight": (_TOKENS, size),
        "midlayer.self_attn.q_proj.weight": (queries, 2 * size),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * size),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * size),
        "midlayer.self_attn.o_proj.weight": (size, queries),
        "midlayer.mlp.gate_proj.weight": (inner, size),
        "midlayer.mlp.up_proj.weight": (inner, size),
        "midlayer.mlp.down_proj.weight": (size, inner),
    }
    generator = torch.Generator().manual_seed(1)
    tensors = {name: (torch.randn(shape, generator=generator) * 0.02).bfloat16() for name, shape in shapes.items()}
    norms = ("norm", *(f"midlayer.{name}" for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")))
    tensors |= {f"{name}.weight": torch.ones(size, dtype=torch.bfloat16) for name in norms}
    tensors["d2t"] = torch.zeros(_TOKENS, dtype=torch.int64)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    same = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
    fields = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **{name: config[name] for name in same},
        "num_hidden_layers": 1,
        "max_position_embeddings": 2048,
        "rms_norm_eps": config["rms_norm_eps"],
        "draft_vocab_size": _TOKENS,
    }
    (folder / "config.json").write_text(json.dumps(fields, indent=2), encoding="utf-8")  # last: the folder is whole
    return folder
