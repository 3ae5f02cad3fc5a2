"""A model of a given shape with random weights: what is measured depends on the shape alone.

Its tokenizer is made up as well. Only the tokens it knows can be sampled: the other rows of the (tied) embedding are
zero, so is that of the end of sequence, and a greedy output is always as long as requested.
"""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.peers.shapes import KNOWN_TOKENS, QWEN2, Shape

_END: Final = "<|endoftext|>"


def random_model(folder: Path, shape: Shape = QWEN2) -> Path:
    """Write a model into ``folder`` unless there is one; returns the folder."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    save_file(dict(_weights(shape)), folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer().save(str(folder / "tokenizer.json"))
    tokenizer_config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": _END, "pad_token": _END}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), encoding="utf-8")
    generation = {"eos_token_id": KNOWN_TOKENS, "pad_token_id": KNOWN_TOKENS, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    (folder / "config.json").write_text(
        json.dumps(shape.config, indent=2), encoding="utf-8"
    )  # last: the folder is whole
    return folder


def _weights(shape: Shape) -> Iterator[tuple[str, torch.Tensor]]:
    config = shape.config
    hidden, queries = config["hidden_size"], shape.head_dim * config["num_attention_heads"]
    kv = shape.head_dim * config["num_key_value_heads"]
    embedding = _random(config["vocab_size"], hidden)
    embedding[KNOWN_TOKENS:] = 0
    yield "model.embed_tokens.weight", embedding
    yield "model.norm.weight", _ones(hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{name}.weight", _ones(hidden)
        for name, width in (("q", queries), ("k", kv), ("v", kv)):
            yield f"{prefix}.self_attn.{name}_proj.weight", _random(width, hidden)
            if config["model_type"] == "qwen2":
                yield f"{prefix}.self_attn.{name}_proj.bias", torch.zeros(width, dtype=torch.bfloat16)
        if config["model_type"] != "qwen2":
            for name in ("q_norm", "k_norm"):
                yield f"{prefix}.self_attn.{name}.weight", _ones(shape.head_dim)
        yield f"{prefix}.self_attn.o_proj.weight", _random(hidden, queries)
        if not shape.experts:
            yield from _mlp(f"{prefix}.mlp", hidden, config["intermediate_size"])
            continue
        yield f"{prefix}.mlp.gate.weight", _random(shape.experts, hidden)
        for expert in range(shape.experts):
            yield from _mlp(f"{prefix}.mlp.experts.{expert}", hidden, config["moe_intermediate_size"])


def _mlp(prefix: str, hidden: int, inner: int) -> Iterator[tuple[str, torch.Tensor]]:
    yield f"{prefix}.gate_proj.weight", _random(inner, hidden)
    yield f"{prefix}.up_proj.weight", _random(inner, hidden)
    yield f"{prefix}.down_proj.weight", _random(hidden, inner)


def _ones(width: int) -> torch.Tensor:
    return torch.ones(width, dtype=torch.bfloat16)


def _random(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16).normal_(0.0, 0.02)


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
