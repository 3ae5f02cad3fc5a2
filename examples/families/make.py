"""Makes folders of small random models of families: ``python -m examples.families.make [FAMILY …] [--folder FOLDER]``.

The shape is the family's with smaller numbers, so everything that is special about it is in use. What the models write
is noise; what it shows is that folder, tokenizer, template, engine and router fit together.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.families.tokenizers import byte_fallback_tokenizer, byte_level_tokenizer
from tokenizers import Tokenizer, processors

FOLDER = Path("/tmp/bladellm-families")
"""Where the manifests beside this file look for the models, each in a folder of its family's name."""


@dataclass(frozen=True)
class Family:
    """What a model of the family consists of."""

    name: str
    """transformers' name of its classes: ``NAMEConfig`` and ``NAMEForCausalLM``."""
    shape: dict[str, Any]
    """Fields of ``config.json``, those of the vocabulary left out."""
    tokenizer: Callable[[], Tokenizer]
    special: dict[str, str]
    """By role (``bos_token``, ``eos_token``, ``pad_token``)."""
    template: str = ""
    """The chat template; empty: it has none."""


def _opt_tokenizer() -> Tokenizer:
    tokenizer = byte_level_tokenizer(("<s>", "<pad>", "</s>", "<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])
    return tokenizer


def _mistral_tokenizer() -> Tokenizer:
    tokenizer = byte_fallback_tokenizer(("[INST]", "[/INST]"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


FAMILIES: dict[str, Family] = {
    # facebook/opt-125m: learned positions, layer norms before each part, ReLU, biases, tied; begins with </s>.
    "opt": Family(
        "OPT",
        {
            "hidden_size": 64,
            "word_embed_proj_dim": 64,
            "ffn_dim": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "max_position_embeddings": 512,
            "activation_function": "relu",
            "do_layer_norm_before": True,
            "dropout": 0.0,
        },
        _opt_tokenizer,
        {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"},
    ),
    # Qwen/Qwen3-0.6B: grouped queries with normalised heads larger than their share, tied; ChatML.
    "qwen3": Family(
        "Qwen3",
        {
            "hidden_size": 64,
            "intermediate_size": 192,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": 1024,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
        },
        lambda: byte_level_tokenizer(("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    ),
    # mistralai/Mistral-7B-Instruct-v0.1: grouped queries, a window (of 32 tokens here); roles take turns.
    "mistral": Family(
        "Mistral",
        {
            "hidden_size": 64,
            "intermediate_size": 224,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "max_position_embeddings": 1024,
            "sliding_window": 32,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
        },
        _mistral_tokenizer,
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        "{{ bos_token }}{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('After the optional system message, conversation roles must alternate user/assistant') }}"
        "{% endif %}{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]"
        "{% else %}{{ message['content'] }}{{ eos_token }}{% endif %}{% endfor %}",
    ),
}


def make(family: str, folder: Path) -> Path:
    """Write the model of ``family`` into ``folder``: the same bytes each time, below a megabyte."""
    import torch
    import transformers
    from examples.families.weights import randomize

    chosen = FAMILIES[family]
    tokenizer = chosen.tokenizer()
    ids = {f"{role}_id": tokenizer.token_to_id(token) for role, token in chosen.special.items() if role != "unk_token"}
    absent = {f"{role}_token_id": None for role in ("bos", "pad") if f"{role}_token_id" not in ids}
    shape = {**chosen.shape, **ids, **absent, "vocab_size": tokenizer.get_vocab_size()}
    with torch.random.fork_rng():
        torch.manual_seed(20240607)
        config = getattr(transformers, f"{chosen.name}Config")(**shape)
        model = getattr(transformers, f"{chosen.name}ForCausalLM")(config)
        randomize(model)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {**chosen.special, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    if chosen.template:
        (folder / "chat_template.jinja").write_text(chosen.template, encoding="utf-8")
    return folder


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.families.make", description="Make small random models of families."
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"{', '.join(FAMILIES)}; all when none is named")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where each gets a folder of its own (%(default)s)")
    options = parser.parse_args()
    if unknown := set(options.families) - set(FAMILIES):
        parser.error(f"no family {', '.join(sorted(unknown))}; there are {', '.join(FAMILIES)}")
    for family in options.families or FAMILIES:
        print(make(family, options.folder / family))


if __name__ == "__main__":
    main()
