"""Which files of a model are fetched: configuration, tokenizer, templates, and one copy of the weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from blade_llm.hub.model import HubModel
from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.checkpoint import INDEX_NAME, PICKLED_INDEX_NAME, PICKLED_NAME, SINGLE_NAME

ELSEWHERE: Final = "download the folder elsewhere and pass MODEL=FOLDER (or --model FOLDER)"

TOKENIZER: Final = re.compile(
    r"(?:tokenizer|tekken)\.json|(?:tokenizer|tiktoken|spiece|sentencepiece\.bpe)\.model|[^/]+\.tiktoken"
)
"""Any of them is a tokenizer (:mod:`blade_llm.tokenizer_files`)."""
_SIDE_FILES: Final = re.compile(rf"[^/]+\.(?:json|jinja)|{TOKENIZER.pattern}|[^/]*Pooling/config\.json")
"""Configuration, tokenizer, templates, and how a model for embeddings pools (``1_Pooling/config.json``)."""
_SHARD: Final = re.compile(r"model-\d+-of-\d+\.safetensors")
_PICKLED_SHARD: Final = re.compile(r"pytorch_model-\d+-of-\d+\.bin")


ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = ("adapter_model.safetensors", "adapter_model.bin")
"""Of a LoRA adapter, the first that is there."""


def wanted_files(names: Sequence[str], model: HubModel) -> list[str]:
    """Those of ``names`` that the engine needs, sorted: of a model, or of a LoRA adapter. Raises
    :class:`ModelFilesError` where it cannot work."""
    if ADAPTER_CONFIG in names and "config.json" not in names:
        weights = [name for name in ADAPTER_WEIGHTS if name in names][:1]
        if not weights:
            raise ModelFilesError(f"adapter {model} has neither {' nor '.join(ADAPTER_WEIGHTS)} on the hub")
        return sorted([ADAPTER_CONFIG, *weights])
    wanted = [name for name in names if _SIDE_FILES.fullmatch(name)] + _weights(list(names), model)
    if "config.json" not in wanted:
        raise ModelFilesError(f"model {model} has no config.json on the hub; it is not in the Hugging Face layout")
    return sorted(wanted)


def _weights(names: list[str], model: HubModel) -> list[str]:
    """The weight files to take, by the loader's own preference; other copies of the weights are left out."""
    if SINGLE_NAME in names:
        return [SINGLE_NAME]
    shards = [name for name in names if _SHARD.fullmatch(name)]
    if INDEX_NAME in names and shards:
        return shards
    others = [n for n in names if n.endswith(".safetensors") and "/" not in n and not n.startswith("consolidated")]
    if others:
        return others
    if PICKLED_NAME in names:
        return [PICKLED_NAME]
    shards = [name for name in names if _PICKLED_SHARD.fullmatch(name)]
    if PICKLED_INDEX_NAME in names and shards:
        return shards
    raise ModelFilesError(
        f"model {model} has no *.safetensors and no {PICKLED_NAME} on the hub; use a repository that offers them"
    )
