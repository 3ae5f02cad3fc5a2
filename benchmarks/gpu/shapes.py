"""Models by shape; weights are random and made on the device (``load_format`` dummy)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.machine import DRY
from blade_llm.models.config import ModelConfig, load_model_config


@dataclass(frozen=True)
class Shape:
    """A model's dimensions."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    architecture: str
    rope_theta: float

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """Parameters that a decode step reads: all but the embedding."""
        width = (self.heads + 2 * self.kv_heads) * self.head_dim
        layer = self.hidden * width + self.heads * self.head_dim * self.hidden + 3 * self.hidden * self.inner
        return self.layers * layer + self.hidden * self.vocabulary

    @property
    def kv_bytes(self) -> int:
        """KV bytes of one token, in bf16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def fields(self) -> dict[str, Any]:
        """Those of ``config.json``."""
        return {
            "architectures": [self.architecture],
            "model_type": "qwen2" if self.architecture.startswith("Qwen2") else "llama",
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.inner,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-6,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
            "eos_token_id": self.vocabulary - 1,
            "torch_dtype": "bfloat16",
        }

    def write(self, folder: Path) -> ModelConfig:
        """Write ``config.json`` and return what the engine makes of it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.fields, indent=2), encoding="utf-8")
        return load_model_config(folder)


QWEN = Shape("qwen2.5-7b", 3584, 28, 28, 4, 18944, 152064, "Qwen2ForCausalLM", 1e6)
LLAMA = Shape("llama3-8b", 4096, 32, 32, 8, 14336, 128256, "LlamaForCausalLM", 5e5)
TINY = Shape("tiny", 256, 2, 4, 2, 512, 512, "Qwen2ForCausalLM", 1e6)
MODEL = TINY if DRY else QWEN
