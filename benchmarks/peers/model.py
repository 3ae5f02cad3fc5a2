"""A model with the shape of Qwen2.5-0.5B and random weights: what is measured depends on the shape alone.

Its tokenizer is made up as well. Only the tokens it knows can be sampled: the other rows of the (tied) embedding are
zero, so is that of the end of sequence, and a greedy output is always as long as requested.
"""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

KNOWN_TOKENS: Final = 32_000
"""Ids below this are words of the tokenizer; prompts and outputs consist of them."""
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151_936,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "use_sliding_window": False,
    "bos_token_id": KNOWN_TOKENS,
    "eos_token_id": KNOWN_TOKENS,
    "torch_dtype": "bfloat16",
    "initializer_range": 0.02,
}
_END: Final = "<|endoftext|>"


def random_model(folder: Path) -> Path:
    """Write the model into ``folder`` unless it is there; returns the folder."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    save_file(dict(_weights()), folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer_config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": _END, "pad_token": _END}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), encoding="utf-8")
    generation = {"eos_token_id": KNOWN_TOKENS, "pad_token_id": KNOWN_TOKENS, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")  # last: the folder is whole
    return folder


def _weights() -> Iterator[tuple[str, torch.Tensor]]:
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    kv = hidden // CONFIG["num_attention_heads"] * CONFIG["num_key_value_heads"]
    embedding = _random(CONFIG["vocab_size"], hidden)
    embedding[KNOWN_TOKENS:] = 0
    yield "model.embed_tokens.weight", embedding
    yield "model.norm.weight", torch.ones(hidden, dtype=torch.bfloat16)
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{name}.weight", torch.ones(hidden, dtype=torch.bfloat16)
        for name, width in (("q", hidden), ("k", kv), ("v", kv)):
            yield f"{prefix}.self_attn.{name}_proj.weight", _random(width, hidden)
            yield f"{prefix}.self_attn.{name}_proj.bias", torch.zeros(width, dtype=torch.bfloat16)
        yield f"{prefix}.self_attn.o_proj.weight", _random(hidden, hidden)
        yield f"{prefix}.mlp.gate_proj.weight", _random(inner, hidden)
        yield f"{prefix}.mlp.up_proj.weight", _random(inner, hidden)
        yield f"{prefix}.mlp.down_proj.weight", _random(hidden, inner)


def _random(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16).normal_(0.0, CONFIG["initializer_range"])


def _tokenizer() -> Tokenizer:
    """Byte-level BPE of all bytes and of made-up words of ASCII letters, each the merge of two shorter ones."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    letters = string.ascii_lowercase
    pairs = [a + b for a, b in itertools.product(letters, repeat=2)]
    words = ((first, second) for longer in (letters, pairs) for first, second in itertools.product(pairs, longer))
    for first, second in itertools.chain(itertools.product(letters, repeat=2), words):
        if len(vocabulary) == KNOWN_TOKENS:
            break
        vocabulary[first + second] = len(vocabulary)
        merges.append((first, second))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(_END, special=True)])
    return tokenizer
