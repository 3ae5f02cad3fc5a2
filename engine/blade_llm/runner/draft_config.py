"""The draft model of an engine, read from its files and compared with the target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from blade_llm.config import EngineConfig
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTypeName
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.implementation import read_model_config
from blade_llm.spec.modules import ModulesSpec

_PADDING = 1024
"""Rows by which two models of one tokenizer may differ: vocabularies are padded to multiples of some number."""


@dataclass(frozen=True, slots=True)
class DraftModelConfig:
    """A draft model."""

    folder: Path
    model: ModelConfig
    dtype: DTypeName


def draft_model_config(config: EngineConfig, target: ModelConfig, dtype: DTypeName) -> DraftModelConfig | None:
    """The draft model of ``config``; None where decoding needs none. ``dtype``: the target's.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for one that cannot draft for ``target``.
    """
    speculative = config.speculative
    if speculative is None or not speculative.draft_model:
        return None
    folder = Path(speculative.draft_model)
    draft_dtype = dtype if speculative.draft_dtype == "auto" else speculative.draft_dtype
    return DraftModelConfig(folder, read_draft(folder, target), draft_dtype)


def read_draft(folder: Path, target: ModelConfig) -> ModelConfig:
    """The configuration of a draft model of ``target``.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for one that cannot draft for it.
    """
    model = _read(folder)
    if isinstance(model.decoder, ModulesSpec) or model.decoder.bidirectional or not model.decoder.head:
        raise ModelFilesError(
            f"{folder}: a draft model is a decoder of a family that this engine computes itself; choose another "
            "--draft.model"
        )
    if abs(model.vocab_size - target.vocab_size) > _PADDING:
        raise ModelFilesError(
            f"{folder}: its vocabulary has {model.vocab_size} tokens, the model's {target.vocab_size}: a draft model "
            "needs the tokenizer of the model; choose a smaller model of the same family as --draft.model"
        )
    return model


@cache
def _read(folder: Path) -> ModelConfig:
    return read_model_config(folder, "auto", "generate")
