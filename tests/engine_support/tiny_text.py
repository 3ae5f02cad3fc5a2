"""A model folder with everything but weights: shape, byte-level tokenizer, chat template. Made in milliseconds.

Token ids: 0 ``<|endoftext|>``, 1 ``<|im_start|>``, 2 ``<|im_end|>`` (end of sequence), then the 256 bytes, then merges.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from examples.families import tokenizers as of_examples
from tokenizers import Tokenizer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


def byte_level_tokenizer(vocab_size: int = 320) -> Tokenizer:
    """As Qwen2's: byte-level BPE, special tokens first."""
    return of_examples.byte_level_tokenizer(SPECIAL, vocab_size)


def write_tokenizer(folder: Path, tokenizer: Tokenizer | None = None, **config: Any) -> Path:
    """``tokenizer.json`` and ``tokenizer_config.json`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (tokenizer or byte_level_tokenizer()).save(str(folder / "tokenizer.json"))
    values = {"eos_token": "<|im_end|>", "pad_token": {"content": "<|endoftext|>"}, "chat_template": TEMPLATE, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def write_model(folder: Path, **overrides: Any) -> Path:
    """A folder for ``--load_format dummy``, or for an engine with the fake runner."""
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **overrides}), encoding="utf-8")
    return folder
