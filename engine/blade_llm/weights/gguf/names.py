"""Names and layout: how a tensor of a Hugging Face checkpoint lies in a GGUF file of the same model."""

from __future__ import annotations

import re
from typing import Final

ARCHITECTURES: Final = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
"""``general.architecture`` to the first entry of ``architectures`` in ``config.json``."""

_TOP: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK: Final = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
ROPE_FACTORS: Final = "rope_freqs.weight"


def hub_name(name: str) -> str | None:
    """The Hugging Face name of tensor ``name``; None for one that has none."""
    if name in _TOP:
        return _TOP[name]
    match = _BLOCK.fullmatch(name)
    if match is None or match[2] not in _LAYER:
        return None
    return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"


def permuted_heads(architecture: str, name: str, heads: int, kv_heads: int) -> int:
    """The number of heads whose rows were reordered, 0 for none: ``llama`` pairs neighbouring rows in rotation, where
    Hugging Face pairs the halves of a head."""
    if architecture != "llama":
        return 0
    return {"self_attn.q_proj": heads, "self_attn.k_proj": kv_heads}.get(".".join(name.split(".")[-3:-1]), 0)
