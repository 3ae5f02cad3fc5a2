"""Baichuan and Baichuan 2 (Yang et al., arXiv 2309.10305): Llama's layers with queries, keys and values in one matrix.
7B rotates, 13B has ALiBi; Baichuan 2 normalises the rows of the output matrix."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.alibi import alibi_slopes
from blade_llm.spec.decoder import DecoderSpec

_FIRST_VOCABULARY = 64_000
"""Of the first Baichuan, whose output matrix is used as it is; nothing else in its configuration tells."""


def _baichuan(raw: RawConfig) -> DecoderSpec:
    """Only configurations of models that rotate have ``max_position_embeddings``."""
    alibi = "max_position_embeddings" not in raw.fields
    longest = raw.positive("model_max_length" if alibi else "max_position_embeddings")
    spec = llama_like(RawConfig({**raw.fields, "max_position_embeddings": longest}))
    spec = replace(spec, head_unit_rows=spec.vocab_size != _FIRST_VOCABULARY)
    if not alibi:
        return spec
    slopes = alibi_slopes(raw.positive("num_attention_heads"))
    layers = (replace(x, attention=replace(x.grouped_attention, rope=None, alibi_slopes=slopes)) for x in spec.layers)
    return replace(spec, layers=tuple(layers))


BAICHUAN = Family(_baichuan, Names(qkv=("self_attn.W_pack",)))
