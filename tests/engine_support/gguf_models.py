"""Random models as safetensors and as GGUF files made with the ``gguf`` package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from hub_support.tiny_model import make_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.tensors import expected_tensors
from blade_llm.weights.sources import SafetensorsWeights

CPU = torch.device("cpu")
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
SHAPE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 320}
TEXTS = ["def add(a, b): return a + b  # 12345", "it's  two\n\nlines", "naïve 東京 🙂", " x"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


EPS = 2.0**-20
"""The same number in the file's fp32."""


def llama_cpp_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}.get(
            name, "output.weight"
        )
    _, _, number, *middle, end = name.split(".")
    return f"blk.{number}.{NAMES['.'.join(middle)]}.{end}"


def for_llama_cpp(name: str, value: np.ndarray, config: ModelConfig) -> np.ndarray:
    """llama.cpp rotates neighbours, so its converter deals the two halves of each head out in turns."""
    for part, heads in (("q_proj", config.num_heads), ("k_proj", config.kv.num_heads)):
        if config.architecture == "LlamaForCausalLM" and part in name:
            half = len(value) // heads // 2
            rows = [head * 2 * half + side * half + i for head in range(heads) for i in range(half) for side in (0, 1)]
            return value[rows]
    return value


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=310, initial_alphabet=alphabet, special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"]
    )
    tokenizer.train_from_iterator([*TEXTS, "the three hundred lines of text " * 20], trainer)
    return tokenizer


class Model:
    """A random model as safetensors, and the same as GGUF."""

    def __init__(self, folder: Path, architecture: str, **config: Any) -> None:
        merged = {**SHAPE, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": EPS, **config}
        self.folder = make_model(folder / "hub", architectures=[architecture], **merged)
        (self.folder / "model.safetensors").unlink()
        self.config = load_model_config(self.folder)
        random = np.random.default_rng(1)
        self.tensors = {
            name: random.standard_normal(shape, dtype=np.float32) / 16
            for name, shape in expected_tensors(self.config).items()
        }
        self.file = folder / "tiny.gguf"

    def write_parts(self, stem: Path, kind: str, count: int) -> list[Path]:
        """``count`` files, of which the first has all metadata."""
        stem.parent.mkdir(parents=True, exist_ok=True)
        self.write(kind, path=stem.with_name(f"{stem.name}.gguf"), split=-(-len(self.tensors) // count))
        return sorted(stem.parent.glob("*.gguf"))

    def write(
        self,
        kind: str = "F32",
        raw: dict[str, tuple[np.ndarray, str]] | None = None,
        drop: str = "",
        path: Path | None = None,
        split: int = 0,
        **metadata: Any,
    ) -> Path:
        """``kind``: of matrices; ``raw``: bytes and type of tensors by their name; ``split``: tensors of a part."""
        arch = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}.get(self.config.architecture, "?")
        layer = self.config.decoder.layers[0]
        rope = layer.attention.rope
        assert rope is not None
        config = self.config
        writer = gguf.GGUFWriter(path or self.file, metadata.pop("arch", arch), split_max_tensors=split)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_layers)
        writer.add_feed_forward_length(layer.mlp.inner)
        writer.add_head_count(config.num_heads)
        writer.add_head_count_kv(config.kv.num_heads)
        writer.add_layer_norm_rms_eps(layer.attention_norm.eps)
        writer.add_rope_freq_base(rope.theta)
        content = json.loads(byte_level().to_str())
        vocabulary = sorted(content["model"]["vocab"].items(), key=lambda item: item[1])
        special = {token["content"] for token in content["added_tokens"]}
        writer.add_tokenizer_model(metadata.pop("tokenizer", "gpt2"))
        writer.add_tokenizer_pre(metadata.pop("pre", "gpt-2"))
        writer.add_token_list([token for token, _ in vocabulary])
        writer.add_token_types([3 if token in special else 1 for token, _ in vocabulary])
        writer.add_token_merges([" ".join(merge) for merge in content["model"]["merges"]])
        writer.add_eos_token_id(2)
        writer.add_chat_template(TEMPLATE)
        for name, value in metadata.items():
            writer.add_uint32(name.replace("__", "."), value)
        for name, value in self.tensors.items():
            if name == drop:
                continue
            if raw and name in raw:
                data, raw_kind = raw[name]
                writer.add_tensor(llama_cpp_name(name), data, raw_dtype=gguf.GGMLQuantizationType[raw_kind])
                continue
            stored = for_llama_cpp(name, value, config)
            kept = "F32" if value.ndim == 1 else kind
            quantized = gguf.quants.quantize(stored, gguf.GGMLQuantizationType[kept])
            writer.add_tensor(llama_cpp_name(name), quantized, raw_dtype=gguf.GGMLQuantizationType[kept])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return self.file


def read(folder: Path) -> dict[str, np.ndarray]:
    config = load_model_config(folder)
    source = SafetensorsWeights(folder, config, CPU, torch.float32)
    return {name: source.tensor(name).numpy() for name in expected_tensors(config)}
