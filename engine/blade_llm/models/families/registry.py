"""Which family serves an architecture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from blade_llm.config import Task
from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.families.baichuan import BAICHUAN
from blade_llm.models.families.big_science import BLOOM, STARCODER2
from blade_llm.models.families.cohere import COHERE
from blade_llm.models.families.encoders.bert import BERT, ROBERTA
from blade_llm.models.families.falcon import FALCON
from blade_llm.models.families.family import Family
from blade_llm.models.families.gemma import GEMMA, GEMMA2, GEMMA3
from blade_llm.models.families.glm import CHATGLM, GLM, GLM4
from blade_llm.models.families.gpt.gpt2 import GPT2
from blade_llm.models.families.gpt.gpt_neox import GPT_J, GPT_NEOX
from blade_llm.models.families.granite import GRANITE
from blade_llm.models.families.internlm import INTERNLM2
from blade_llm.models.families.llama import LLAMA
from blade_llm.models.families.mistral import MISTRAL
from blade_llm.models.families.mixtures.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from blade_llm.models.families.mixtures.mixtral import MIXTRAL
from blade_llm.models.families.mixtures.qwen_moe import QWEN2_MOE, QWEN3_MOE
from blade_llm.models.families.olmo import OLMO2
from blade_llm.models.families.opt import OPT
from blade_llm.models.families.phi import PHI, PHI3
from blade_llm.models.families.qwen import MIMO, QWEN, QWEN2, QWEN3
from blade_llm.models.families.stablelm import STABLELM
from blade_llm.models.families.vision_language.internvl import INTERNVL
from blade_llm.models.families.vision_language.qwen_vl import QWEN2_VL, QWEN3_VL
from blade_llm.spec.decoder import ClassifierSpec

FAMILIES: Final[Mapping[str, Family]] = {
    "LlamaForCausalLM": LLAMA,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "MiMoForCausalLM": MIMO,
    "MistralForCausalLM": MISTRAL,
    "MixtralForCausalLM": MIXTRAL,
    "Qwen2MoeForCausalLM": QWEN2_MOE,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "DeepseekV2ForCausalLM": DEEPSEEK_V2,
    "DeepseekV3ForCausalLM": DEEPSEEK_V3,
    "Phi3ForCausalLM": PHI3,
    "InternLM2ForCausalLM": INTERNLM2,
    "GlmForCausalLM": GLM,
    "Glm4ForCausalLM": GLM4,
    "GraniteForCausalLM": GRANITE,
    "PhiForCausalLM": PHI,
    "GPTNeoXForCausalLM": GPT_NEOX,
    "GPTJForCausalLM": GPT_J,
    "FalconForCausalLM": FALCON,
    "OPTForCausalLM": OPT,
    "GPT2LMHeadModel": GPT2,
    "GemmaForCausalLM": GEMMA,
    "Gemma2ForCausalLM": GEMMA2,
    "Gemma3ForCausalLM": GEMMA3,
    "BloomForCausalLM": BLOOM,
    "Starcoder2ForCausalLM": STARCODER2,
    "StableLmForCausalLM": STABLELM,
    "CohereForCausalLM": COHERE,
    "Olmo2ForCausalLM": OLMO2,
    "BaichuanForCausalLM": BAICHUAN,
    "QWenLMHeadModel": QWEN,
    "ChatGLMModel": CHATGLM,
    "Qwen2VLForConditionalGeneration": QWEN2_VL,
    "Qwen2_5_VLForConditionalGeneration": QWEN2_VL,
    "Qwen3VLForConditionalGeneration": QWEN3_VL,
    "InternVLForConditionalGeneration": INTERNVL,
}
"""By the first entry of ``architectures`` in ``config.json``."""

EMBEDDING_ONLY: Final[Mapping[str, Family]] = {
    "LlamaModel": LLAMA,
    "Qwen2Model": QWEN2,
    "Qwen3Model": QWEN3,
    "MistralModel": MISTRAL,
    "BertModel": BERT,
    "BertForMaskedLM": BERT,
    "RobertaModel": ROBERTA,
    "RobertaForMaskedLM": ROBERTA,
    "XLMRobertaModel": ROBERTA,
    "XLMRobertaForMaskedLM": ROBERTA,
}
"""Layers without an output matrix, as models for embeddings are often saved, and encoders."""

CLASSIFIERS: Final[Mapping[str, tuple[Family, ClassifierSpec]]] = {
    "BertForSequenceClassification": (BERT, ClassifierSpec(dense=True, bias=True)),
    "RobertaForSequenceClassification": (ROBERTA, ClassifierSpec(dense=True, bias=True)),
    "XLMRobertaForSequenceClassification": (ROBERTA, ClassifierSpec(dense=True, bias=True)),
    "Qwen2ForSequenceClassification": (QWEN2, ClassifierSpec(dense=False, bias=False)),
    "Qwen3ForSequenceClassification": (QWEN3, ClassifierSpec(dense=False, bias=False)),
}
"""Cross-encoders: the layers, and what makes a score of a pooled state."""


def family_of(architecture: str, task: Task = "generate") -> Family:
    """The family of ``architecture``.

    Raises :class:`UnsupportedModelError` that names the architecture and the supported ones, or ``task`` where the
    architecture can only do others.
    """
    if architecture in CLASSIFIERS:
        if task != "score":
            raise UnsupportedModelError(f"{architecture} scores pairs of texts; give --task score")
        return CLASSIFIERS[architecture][0]
    if task == "score":
        raise UnsupportedModelError(
            f"{architecture} scores no pairs of texts; leave out --task score, or use a model of one of these: "
            f"{', '.join(CLASSIFIERS)}"
        )
    family = FAMILIES.get(architecture)
    if family is None and architecture in EMBEDDING_ONLY:
        if task == "generate":
            raise UnsupportedModelError(f"{architecture} generates no text, but embeddings; give --task embed")
        return EMBEDDING_ONLY[architecture]
    if family is None:
        raise UnsupportedModelError(
            f"architecture {architecture!r} is not supported; use a model of one of these: "
            f"{', '.join((*FAMILIES, *EMBEDDING_ONLY, *CLASSIFIERS))}"
        )
    return family
