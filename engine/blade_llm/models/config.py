"""A model's configuration, read from a Hugging Face ``config.json`` without importing transformers.

Everything above the layers reads this one frozen record and knows no family; torch is not needed for it, so that the
API server, the scheduler and ``blade_llm_check`` can.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from blade_llm.config import Task
from blade_llm.kv_quant import KVQuant
from blade_llm.models.dtypes import DTYPE_BYTES, DTypeName, parse_dtype
from blade_llm.models.errors import ModelFilesError, UnsupportedModelError
from blade_llm.models.families.registry import CLASSIFIERS, family_of
from blade_llm.models.names import tensor_map
from blade_llm.models.quantized.config import read_forms, with_forms
from blade_llm.models.raw_config import RawConfig, text_fields
from blade_llm.models.vision.config import read_vision
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.latent_attention import LatentAttentionSpec
from blade_llm.spec.modules import ModulesSpec
from blade_llm.spec.rope import YarnScaling
from blade_llm.spec.shard import Shard, Stage
from blade_llm.spec.tensors import TensorMap
from blade_llm.spec.vision.tower import VisionSpec

__all__ = ["DTYPE_BYTES", "DTypeName", "KVSpec", "ModelConfig", "load_model_config", "read_json"]


@dataclass(frozen=True, slots=True)
class KVSpec:
    """What the KV cache holds of a token: a key and a value of so many heads in each layer; of an encoder in none."""

    num_layers: int
    num_heads: int
    head_dim: int
    value_part: int = 0
    """Values are the first so many elements of keys (latent attention); 0: they are beside them, as wide."""
    quant: KVQuant | None = None
    """How they are quantised; None: they have the type of the activations."""

    @property
    def tensors(self) -> int:
        """How many are kept of each layer: keys and values, or keys alone."""
        return 1 if self.value_part else 2

    @property
    def token_elements(self) -> int:
        """Numbers that one token takes in all layers."""
        return self.tensors * self.num_layers * self.num_heads * self.head_dim

    def token_bytes(self, element: int) -> int:
        """Bytes that one token takes in all layers; ``element``: of a number that is not quantised."""
        if self.quant is None:
            return self.token_elements * element
        rows = (self.quant, self.quant.values)[: self.tensors]
        return self.num_layers * self.num_heads * sum(each.row_bytes(self.head_dim) for each in rows)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What the rest of the engine knows of a model."""

    architecture: str
    """First entry of ``architectures``, e.g. ``Qwen2ForCausalLM``."""
    decoder: DecoderSpec | ModulesSpec
    tensors: TensorMap = field(repr=False)
    """Where a checkpoint has its tensors, which the architecture and ``decoder`` determine."""
    kv: KVSpec
    dtype: DTypeName
    """The checkpoint's own type."""
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    shard: Shard | None = None
    """Which rank's part of a model this describes (:mod:`blade_llm.models.sharding`); None: the whole."""
    stage: Stage | None = None
    """Which stage's layers this describes; None: all."""
    kv_share: Fraction = Fraction(1)
    """The part that the rank this describes gets of the bytes that all ranks of its machine have for KV caches."""
    vision: VisionSpec | None = None
    """What makes embeddings of images, which take the places of tokens; None: the model sees none."""

    @property
    def vocab_size(self) -> int:
        """Tokens, those that only pad the tables included."""
        return self.decoder.vocab_size

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""
        return self.decoder.hidden_size

    @property
    def num_layers(self) -> int:
        """Decoder layers; of a stage, the stage's."""
        return self.kv.num_layers

    @property
    def ends(self) -> bool:
        """Whether it ends with the model's last layer, and has what comes after that."""
        return self.stage is None or self.stage.last

    @property
    def num_heads(self) -> int:
        """Query heads, equal in all layers."""
        return self.decoder.num_heads

    @property
    def is_head(self) -> bool:
        """Whether it drafts from hidden states of another model, and computes each position with the token after it."""
        return isinstance(self.decoder, DecoderSpec) and self.decoder.prediction is not None

    @property
    def max_position_embeddings(self) -> int:
        """The longest sequence that the model was made for."""
        return self.decoder.max_positions


Description = tuple[DecoderSpec | ModulesSpec, TensorMap, KVSpec]
"""What a model computes, where its tensors are, and what the KV cache holds."""
Describe = Callable[[str, RawConfig, Task], Description]
"""Makes it of an architecture, the fields of ``config.json`` and a task."""


def describe_family(architecture: str, raw: RawConfig, task: Task) -> Description:
    """As the registered family of ``architecture`` reads it. Raises as :func:`load_model_config` does."""
    family = family_of(architecture, task)
    forms = read_forms(raw)
    decoder = _with_scaled_length(family.decoder(raw))
    if task != "generate":
        decoder = replace(decoder, head=False)
    if task == "score":
        labels = len(raw.get("id2label") or (0, 1))
        if labels != 1:
            raise UnsupportedModelError(f"a cross-encoder has one label, not {labels} ('id2label')")
        decoder = replace(decoder, classifier=CLASSIFIERS[architecture][1])
    attentions = [layer.attention for layer in decoder.layers]
    if len({(a.num_heads, a.num_kv_heads, a.head_dim) for a in attentions}) != 1:
        raise UnsupportedModelError("layers with different numbers of heads are not supported")
    first = attentions[0]
    latent = first.latent_dim if isinstance(first, LatentAttentionSpec) else 0
    kv = KVSpec(0 if decoder.bidirectional else len(decoder.layers), first.num_kv_heads, first.head_dim, latent)
    tensors = tensor_map(decoder, family.names_of(raw))
    return decoder, tensors if forms is None else with_forms(tensors, forms), kv


def load_model_config(model_dir: Path, task: Task = "generate", describe: Describe = describe_family) -> ModelConfig:
    """Read ``config.json`` (and ``generation_config.json`` for end-of-sequence ids) in ``model_dir``.

    ``task`` ``embed``: without the output matrix, which embeddings do not need; ``score``: with a classifier in its
    place. ``describe``: what makes something of the fields, which
    :func:`blade_llm.models.implementation.read_model_config` chooses.

    Raises :class:`ModelFilesError` when the folder or file is missing, is not JSON, or a field is missing or senseless,
    and :class:`UnsupportedModelError` for what the model needs and no code here computes.
    """
    fields = read_json(model_dir, "config.json")
    path = model_dir / "config.json"
    architectures = fields.get("architectures") or []
    if not isinstance(architectures, list) or not architectures:
        raise ModelFilesError(f"{path}: 'architectures' is missing or empty")
    try:
        config = _build(str(architectures[0]), RawConfig(fields), _eos_token_ids(model_dir, fields), task, describe)
        if task == "generate" and config.tensors.vision:
            config = replace(config, vision=read_vision(RawConfig(fields), _preprocessor(model_dir)))
        return config
    except UnsupportedModelError as error:
        own_code = "; the code that comes with it ('auto_map') is never run" if fields.get("auto_map") else ""
        raise UnsupportedModelError(f"{path}: {error}{own_code}") from None
    except KeyError as error:
        raise ModelFilesError(f"{path}: {error} is missing") from None
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ModelFilesError(f"{path}: {error}") from None


def _build(
    architecture: str, raw: RawConfig, eos_token_ids: tuple[int, ...], task: Task, describe: Describe
) -> ModelConfig:
    decoder, tensors, kv = describe(architecture, raw, task)
    if text := text_fields(raw.fields):  # what stands beside it is about all of the model
        raw = RawConfig({**text, **raw.fields})
    bos_token_id = raw.get("bos_token_id")
    unsaid = "float16" if tensors.quantized else "float32"
    return ModelConfig(
        architecture=architecture,
        decoder=decoder,
        tensors=tensors,
        kv=kv,
        dtype=parse_dtype(str(raw.get("dtype") or raw.get("torch_dtype") or unsaid)),
        eos_token_ids=tuple(token for token in eos_token_ids if 0 <= token < decoder.vocab_size),  # never sampled else
        bos_token_id=None if bos_token_id is None else int(bos_token_id),
    )


def _with_scaled_length(decoder: DecoderSpec) -> DecoderSpec:
    """YaRN as models publish it: ``max_position_embeddings`` stays the original length, the factor extends it."""
    ropes = {layer.attention.rope for layer in decoder.layers} - {None}
    scalings = [rope.scaling for rope in ropes if rope is not None and isinstance(rope.scaling, YarnScaling)]
    lengths = [int(scaling.original_positions * scaling.factor) for scaling in scalings]
    return replace(decoder, max_positions=max([decoder.max_positions, *lengths]))


def read_json(model_dir: Path, name: str) -> dict[str, Any]:
    """The JSON object in file ``name`` of a model folder. Raises :class:`ModelFilesError`."""
    if not model_dir.is_dir():
        raise ModelFilesError(
            f"model folder {model_dir} does not exist; give --model a folder with config.json and *.safetensors"
        )
    path = model_dir / name
    if not path.is_file():
        raise ModelFilesError(f"{path} is missing; {model_dir} is not a Hugging Face model folder")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFilesError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ModelFilesError(f"{path} must hold a JSON object")
    return raw


def _preprocessor(model_dir: Path) -> dict[str, Any]:
    """How pixels become numbers; empty where the folder does not say. As in transformers, ``image_processor`` in
    ``processor_config.json`` comes first."""
    if (model_dir / "processor_config.json").is_file():
        nested = read_json(model_dir, "processor_config.json").get("image_processor")
        if isinstance(nested, dict):
            return nested
    name = "preprocessor_config.json"
    return read_json(model_dir, name) if (model_dir / name).is_file() else {}


def _eos_token_ids(model_dir: Path, raw: dict[str, Any]) -> tuple[int, ...]:
    found: list[int] = []
    sources = [raw, text_fields(raw)]
    if (model_dir / "generation_config.json").is_file():
        sources.append(read_json(model_dir, "generation_config.json"))
    for source in sources:
        value = source.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        found.extend(int(token) for token in ids if int(token) not in found)
    return tuple(found)
