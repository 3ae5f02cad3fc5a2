"""A model folder of a few kilobytes, complete but for sense: the starting point of every broken one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "eos_token_id": 1,
    "torch_dtype": "float32",
}
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def tensors() -> dict[str, numpy.ndarray]:
    """The weights of :data:`CONFIG`, written out by hand: the test's own opinion of names and shapes."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (32, 16), "model.norm.weight": (16,)}
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "self_attn.q_proj.weight": (16, 16),
            prefix + "self_attn.q_proj.bias": (16,),
            prefix + "self_attn.k_proj.weight": (8, 16),
            prefix + "self_attn.k_proj.bias": (8,),
            prefix + "self_attn.v_proj.weight": (8, 16),
            prefix + "self_attn.v_proj.bias": (8,),
            prefix + "self_attn.o_proj.weight": (16, 16),
            prefix + "mlp.gate_proj.weight": (24, 16),
            prefix + "mlp.up_proj.weight": (24, 16),
            prefix + "mlp.down_proj.weight": (16, 24),
            prefix + "input_layernorm.weight": (16,),
            prefix + "post_attention_layernorm.weight": (16,),
        }
    random = numpy.random.default_rng(0)
    return {name: random.standard_normal(shape, dtype=numpy.float32) for name, shape in shapes.items()}


def make_model(
    folder: Path,
    *,
    shards: int = 1,
    drop: Iterable[str] = (),
    replace: dict[str, numpy.ndarray] | None = None,
    **config: Any,
) -> Path:
    """Write the model to ``folder``; ``config`` overrides fields (``None`` removes one)."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = {name: value for name, value in {**CONFIG, **config}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(merged))
    weights = {**tensors(), **(replace or {})}
    weights = {name: value for name, value in weights.items() if name not in set(drop)}
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
    else:
        names = sorted(weights)
        index = {}
        for shard in range(shards):
            file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
            part = {name: weights[name] for name in names[shard::shards]}
            save_file(part, folder / file)
            index |= dict.fromkeys(part, file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    tokenizer = Tokenizer(WordLevel({f"w{number}": number for number in range(32)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder
