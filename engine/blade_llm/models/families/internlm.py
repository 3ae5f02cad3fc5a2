"""InternLM2 (Cai et al., arXiv 2403.17297): Llama's layers under other names, with queries, keys and values in one
matrix that has them by key head."""

from __future__ import annotations

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec


def _internlm2(raw: RawConfig) -> DecoderSpec:
    bias = raw.flag("bias")
    return llama_like(raw, qkv_bias=bias, output_bias=bias)


INTERNLM2 = Family(
    _internlm2,
    Names(
        embedding="model.tok_embeddings",
        attention_norm="attention_norm",
        qkv=("attention.wqkv",),
        qkv_layout="grouped",
        output="attention.wo",
        mlp_norm="ffn_norm",
        up=("feed_forward.w1", "feed_forward.w3"),
        down="feed_forward.w2",
        head="output",
    ),
)
