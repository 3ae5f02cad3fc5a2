"""The text models of InternVL (Chen et al., arXiv 2312.14238; Zhu et al., arXiv 2504.10479) as transformers saves it:
those of other families, without any change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.families.family import Family
from blade_llm.models.families.llama import LLAMA
from blade_llm.models.families.qwen import QWEN2, QWEN3
from blade_llm.models.families.vision_language.names import NESTED
from blade_llm.models.families.vision_language.text_config import text_config
from blade_llm.models.names import Names
from blade_llm.models.raw_config import RawConfig
from blade_llm.spec.decoder import DecoderSpec

TEXT_MODELS: Final[Mapping[str, Family]] = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3}
"""By ``model_type`` of ``text_config``."""


def _internvl(raw: RawConfig) -> DecoderSpec:
    text = text_config(RawConfig({"text_config": {}, **raw.fields}))
    kind = text.get("model_type", "qwen2")
    if kind not in TEXT_MODELS:
        raise UnsupportedModelError(
            f"a text model of kind {kind!r} ('text_config') is not supported; supported are {', '.join(TEXT_MODELS)}"
        )
    return TEXT_MODELS[kind].decoder(text)


_VISION = ("model.vision_tower.", "model.multi_modal_projector.", "vision_tower.", "multi_modal_projector.")
INTERNVL = Family(
    _internvl,
    Names(
        embedding="language_model.model.embed_tokens",
        layer="language_model.model.layers.{}",
        final_norm="language_model.model.norm",
        head="language_model.lm_head",
        vision=_VISION,
        other=replace(NESTED, vision=_VISION),
    ),
)
