"""Which files of a model are fetched: configuration, tokenizer, templates, and one copy of the weights, or the folders
of all ranks of one that was split ahead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from blade_llm.hub.model import HubModel
from blade_llm.models.errors import ModelFilesError
from blade_llm.weights.checkpoint import INDEX_NAME, PICKLED_INDEX_NAME, PICKLED_NAME, SINGLE_NAME
from blade_llm.weights.gguf.parts import SUFFIX, models_among, parts_of, stem_of
from blade_llm.weights.split.manifest import RANK_NAME, SPLIT_NAME

ELSEWHERE: Final = "download the folder elsewhere and pass MODEL=FOLDER (or --model FOLDER)"

TOKENIZER: Final = re.compile(
    r"(?:tokenizer|tekken)\.json|merges\.txt|(?:tokenizer|tiktoken|spiece|sentencepiece\.bpe)\.model|[^/]+\.tiktoken"
)
"""Any of them is a tokenizer (:mod:`blade_llm.tokenizer_files`)."""
_SIDE_FILES: Final = re.compile(rf"[^/]+\.(?:json|jinja)|{TOKENIZER.pattern}|[^/]*Pooling/config\.json")
"""Configuration, tokenizer, templates, and how a model for embeddings pools (``1_Pooling/config.json``)."""
_SHARD: Final = re.compile(r"model-\d+-of-\d+\.safetensors")
_PREDICTION: Final = re.compile(r"[^/]*mtp[^/]*\.safetensors")
"""Layers for multi-token prediction that are stored beside the shards."""
_PICKLED_SHARD: Final = re.compile(r"pytorch_model-\d+-of-\d+\.bin")
RANK_FILE: Final = re.compile(
    rf"rank_(0|[1-9]\d*)/(?:model(?:-\d+-of-\d+)?\.safetensors|{re.escape(INDEX_NAME)}|{re.escape(RANK_NAME)})"
)
"""In the folder of a rank (:mod:`blade_llm.weights.split`)."""


ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = ("adapter_model.safetensors", "adapter_model.bin")
"""Of a LoRA adapter, the first that is there."""


def wanted_files(names: Sequence[str], model: HubModel) -> list[str]:
    """Those of ``names`` that the engine needs, sorted: of a model, or of a LoRA adapter. Raises
    :class:`ModelFilesError` where it cannot work."""
    if model.gguf:
        return gguf_files(names, model)
    if ADAPTER_CONFIG in names and "config.json" not in names:
        files = [name for name in ADAPTER_WEIGHTS if name in names][:1]
        if not files:
            raise ModelFilesError(f"adapter {model} has neither {' nor '.join(ADAPTER_WEIGHTS)} on the hub")
        return sorted([ADAPTER_CONFIG, *files])
    weights = _weights(list(names), model)
    wanted = [name for name in names if _SIDE_FILES.fullmatch(name)] + weights
    if "config.json" not in wanted:
        raise ModelFilesError(f"model {model} has no config.json on the hub; it is not in the Hugging Face layout")
    return sorted(wanted)


def gguf_files(names: Sequence[str], model: HubModel) -> list[str]:
    """The file that ``model`` asks for, or all its parts, the first one first. Raises :class:`ModelFilesError`."""
    there = [name for name in models_among(names) if not name.rpartition("/")[2].startswith("mmproj")]  # of images
    if model.gguf.endswith(SUFFIX):
        found = [model.gguf] if model.gguf in names else []
    else:
        # Q4_K_M ends the name of the file, or is the folder it is in.
        kind = re.compile(rf"(?:.*[-._/])?{re.escape(model.gguf)}(?:/.*)?", re.IGNORECASE)
        found = [name for name in there if kind.fullmatch(stem_of(name))]
    if len(found) != 1:
        listed = ", ".join(found or there) or "none"
        raise ModelFilesError(
            f"model {model}: {'several files' if found else 'no file'} of that name; GGUF files there: {listed}; give "
            f"{model.repo_id}/FILE.gguf"
        )
    parts = parts_of(found[0])
    if any(part in ("", ".", "..") for part in found[0].split("/")):
        raise ModelFilesError(f"model {model}: the hub lists a file {found[0]!r}, which is outside the model")
    if missing := [part for part in parts if part not in names]:
        raise ModelFilesError(f"model {model}: {', '.join(missing)}, of {len(parts)} parts, is missing there")
    return parts


def _weights(names: list[str], model: HubModel) -> list[str]:
    """The weight files to take, by the loader's own preference; other copies of the weights are left out."""
    if SPLIT_NAME in names:
        return _rank_files(names, model)
    if SINGLE_NAME in names:
        return [SINGLE_NAME]
    shards = [name for name in names if _SHARD.fullmatch(name)]
    if INDEX_NAME in names and shards:
        return shards + [name for name in names if _PREDICTION.fullmatch(name)]
    others = [n for n in names if n.endswith(".safetensors") and "/" not in n and not n.startswith("consolidated")]
    if others:
        return others
    if PICKLED_NAME in names:
        return [PICKLED_NAME]
    shards = [name for name in names if _PICKLED_SHARD.fullmatch(name)]
    if PICKLED_INDEX_NAME in names and shards:
        return shards
    there = models_among(names)
    instead = f"name one of its GGUF files, as {model.repo_id}:Q4_K_M or {model.repo_id}/{there[0]}" if there else ""
    raise ModelFilesError(
        f"model {model} has no *.safetensors and no {PICKLED_NAME} on the hub; "
        + (instead or "use a repository that offers them")
    )


def _rank_files(names: Sequence[str], model: HubModel) -> list[str]:
    """The files of all ranks, each of which has to be there: a server looks at all of them before it loads its own."""
    found = {name: int(match[1]) for name in names if (match := RANK_FILE.fullmatch(name))}
    ranks = range(max([1, *found.values()]) + 1)
    if missing := next((end for rank in ranks if (end := f"rank_{rank}/{RANK_NAME}") not in found), ""):
        folder = missing.partition("/")[0]
        raise ModelFilesError(
            f"model {model} is split ahead ({SPLIT_NAME}), and {missing} is missing there: the part of a rank is not "
            f"complete; upload {folder} again, or all of what blade_llm_split has made"
        )
    return list(found)
