"""The shapes that engines are compared on: configurations, whose weights are random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

KNOWN_TOKENS: Final = 32_000
"""Ids below this are words of the tokenizer; prompts and outputs consist of them."""

_COMMON: Final[dict[str, Any]] = {
    "vocab_size": 151_936,
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


@dataclass(frozen=True)
class Shape:
    """A model with random weights."""

    name: str
    """Also that of its folder."""
    config: dict[str, Any]
    """Its ``config.json``."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        config = self.config
        return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])

    @property
    def kv_token_bytes(self) -> int:
        """Keys and values of a token in bf16."""
        return 4 * int(self.config["num_hidden_layers"] * self.config["num_key_value_heads"]) * self.head_dim

    @property
    def experts(self) -> int:
        """Of each layer; 0: there is one MLP for all tokens."""
        return int(self.config.get("num_experts", 0))


QWEN2: Final = Shape(
    "qwen2-0.5b",
    {
        **_COMMON,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "max_position_embeddings": 32_768,
    },
)
"""Qwen2.5-0.5B's."""

QWEN3: Final = Shape(
    "qwen3-0.6b",
    {
        **_COMMON,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 3072,
        "max_position_embeddings": 40_960,
        "attention_bias": False,
    },
)
"""Qwen3-0.6B's."""

QWEN3_MOE: Final = Shape(
    "qwen3-moe-1b",
    {
        **_COMMON,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "intermediate_size": 3072,
        "moe_intermediate_size": 384,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "router_aux_loss_coef": 0.001,
        "max_position_embeddings": 40_960,
        "attention_bias": False,
    },
)
"""Qwen3-30B-A3B's proportions with half its hidden size, a quarter of its layers and half of its experts: 1.1 billion
weights, of which a token uses 0.33."""
