"""The draft model of an engine, read from its files and compared with the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from blade_llm.cache.sizing import BLOCK_SIZE, kv_block_bytes
from blade_llm.config import EngineConfig, SpeculativeConfig
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTYPE_BYTES, DTypeName
from blade_llm.models.errors import ModelFilesError
from blade_llm.models.heads.eagle3 import read_eagle3
from blade_llm.models.heads.mtp import read_mtp
from blade_llm.models.implementation import read_model_config
from blade_llm.models.sharding import shard_model, tensor_parallel_problem
from blade_llm.runner.kv_quant import with_kv_quant
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.modules import ModulesSpec
from blade_llm.spec.served_length import for_length
from blade_llm.spec.shard import Shard

_PADDING = 1024
"""Rows by which two models of one tokenizer may differ: vocabularies are padded to multiples of some number."""


@dataclass(frozen=True, slots=True)
class DraftModelConfig:
    """A draft model, or a head that drafts from the model's hidden states."""

    folder: Path
    model: ModelConfig
    dtype: DTypeName

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of its keys and values, and of the states that are kept for it."""
        states = BLOCK_SIZE * self.model.hidden_size * DTYPE_BYTES[self.dtype] if self.model.is_head else 0
        return kv_block_bytes(self.model, self.dtype) + states

    def activation_bytes(self, tokens: int) -> int:
        """Bytes of what a step of so many tokens keeps for the head: the states after several layers, the same side by
        side, and what is made of them."""
        decoder = self.model.decoder
        if isinstance(decoder, ModulesSpec) or decoder.prediction is None or not decoder.prediction.after:
            return 0
        return (2 * len(decoder.prediction.after) + 1) * tokens * self.model.hidden_size * DTYPE_BYTES[self.dtype]


def draft_model_config(config: EngineConfig, target: ModelConfig, dtype: DTypeName) -> DraftModelConfig | None:
    """The draft model or head of ``config``; None where decoding needs none. ``dtype``: the target's.

    Of a ``target`` that is a rank's part of the model it is what that rank has: a part of a head, where the ranks can
    divide it, and else the whole, as of every draft model. Of a pipeline's stages the first alone has one.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for one that cannot draft for ``target``.
    """
    if config.speculative is None or not (target.stage is None or target.stage.first):
        return None
    whole = target if target.shard is None else _whole_target(config)
    found = read_draft(config.speculative, config.model_dir, whole)
    if found is None:
        return None
    folder, model = found
    draft_dtype = dtype if config.speculative.draft_dtype == "auto" else config.speculative.draft_dtype
    own = model if target.shard is None else _own_part(model, target.shard)
    quant = config.speculative.draft_kv_cache_quant, config.speculative.draft_kv_cache_quant_sub_heads
    # A head over the target's hidden states is made from the target's configuration: what that has is not the head's.
    own = with_kv_quant(replace(own, kv=replace(own.kv, quant=None)), *quant, "draft.")
    return DraftModelConfig(folder, own, draft_dtype)


def read_draft(
    speculative: SpeculativeConfig | None, model_dir: Path, target: ModelConfig
) -> tuple[Path, ModelConfig] | None:
    """The folder and the configuration of what drafts for ``target``, in ``model_dir``; None where nothing does.

    Raises :class:`~blade_llm.models.errors.ModelFilesError` for one that cannot draft for it.
    """
    method = None if speculative is None else speculative.method
    folder = Path("" if speculative is None else speculative.draft_model)
    if method == "mtp":
        return model_dir, read_mtp(model_dir, target)
    if method == "eagle3":
        return folder, read_eagle3(folder, target)
    return (folder, _read_model(folder, target)) if method == "draft" else None


def _whole_target(config: EngineConfig) -> ModelConfig:
    """The model of which the ranks have parts."""
    model = read_model_config(config.model_dir, config.model_impl, config.task)
    if not isinstance(model.decoder, DecoderSpec):
        return model
    length = config.max_model_len or model.max_position_embeddings
    return replace(model, decoder=for_length(model.decoder, length))


def _own_part(model: ModelConfig, shard: Shard) -> ModelConfig:
    """What a rank has of a draft model or head."""
    if not model.is_head or tensor_parallel_problem(model, shard.size, expert_parallel=shard.expert_parallel):
        return model
    return shard_model(model, shard.rank, shard.size, expert_parallel=shard.expert_parallel)


def _read_model(folder: Path, target: ModelConfig) -> ModelConfig:
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
