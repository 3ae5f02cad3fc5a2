"""The text models of Qwen2-VL (Wang et al., arXiv 2409.12191), Qwen2.5-VL (Bai et al., arXiv 2502.13923) and Qwen3-VL
(Bai et al., arXiv 2511.21631): the layers of Qwen2 and Qwen3, with a rotation that has an axis for time, one for rows
and one for columns."""

from __future__ import annotations

from dataclasses import replace

from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import llama_like
from blade_llm.models.families.qwen import layer_windows
from blade_llm.models.families.vision_language.names import NESTED
from blade_llm.models.families.vision_language.text_config import either_tied, text_config
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.models.rope_config import read_rope
from blade_llm.spec.decoder import DecoderSpec


def _qwen2_vl(raw: RawConfig) -> DecoderSpec:
    text = text_config(raw, tied=either_tied(raw))
    if "rms_norm_eps" not in text.fields:
        text = RawConfig({**text.fields, "rms_norm_eps": 1e-5})
    rope = read_rope(text, text.head_dim(), default_theta=1e6, sections=(16, 24, 24))
    return llama_like(text, qkv_bias=True, windows=layer_windows(text), rope=rope)


def _qwen3_vl(raw: RawConfig) -> DecoderSpec:
    text = text_config(raw)
    if "head_dim" not in text.fields:
        text = RawConfig({**text.fields, "head_dim": 128})
    rope = read_rope(text, text.head_dim(), default_theta=5e5, sections=(24, 20, 20), interleaved=True)
    bias = text.flag("attention_bias")
    return llama_like(text, qkv_bias=bias, output_bias=bias, head_norm=True, rope=rope)


_VISION = ("model.visual.", "visual.")
_NESTED = replace(NESTED, vision=_VISION)
QWEN2_VL = Family(_qwen2_vl, Names(vision=_VISION, other=_NESTED))
"""Qwen2.5-VL differs in the vision tower alone."""
QWEN3_VL = Family(_qwen3_vl, _NESTED)
