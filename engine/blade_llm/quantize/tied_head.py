"""The output matrix of a model that shares it with the embedding table, as a matrix of its own: quantised, it is no
longer that table, and compressed-tensors has no tensor that is both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from blade_llm.config import Task
from blade_llm.models.config import Description, ModelConfig, describe_family, load_model_config
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.raw_config import RawConfig, text_fields
from blade_llm.quantize.source import TensorReader
from blade_llm.spec.tensors import EMBEDDING

_TIED: Final = "tie_word_embeddings"


def untied(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The ``fields`` of ``config.json`` as they are then: of a model with images those of its text model, too."""
    text = text_fields(fields)
    nested = {"text_config": {**text, _TIED: False}} if text.get(_TIED) else {}
    return {**fields, **nested, _TIED: False}


def untie(folder: Path, fields: Mapping[str, Any], reader: TensorReader) -> tuple[ModelConfig, str]:
    """The model of ``config.json``'s ``fields`` with an output matrix of its own, which ``reader`` has from now on, and
    the name of its weight.

    Raises :class:`ModelFilesError` for a family that has none.
    """

    def describe(architecture: str, raw: RawConfig, task: Task) -> Description:
        return describe_family(architecture, RawConfig(untied(fields)), task)

    config = load_model_config(folder, "generate", describe)
    found = config.tensors.found_in(reader.checkpoint.names)
    if config.decoder.tied or "head" not in found.linears:
        raise ModelFilesError(
            f"{folder}: the output matrix of {config.architecture} is always the embedding table; leave out "
            "--quant_lm_head"
        )
    (part,) = found.linears["head"].weights
    reader.add_copy(part.name, found.tensors[EMBEDDING].name)
    return config, part.name
