"""Models that a number of ranks cannot divide among themselves, and numbers that can."""

from __future__ import annotations

from typing import Final

from blade_llm.config import MAX_RANKS
from blade_llm.models.config import ModelConfig
from blade_llm.models.sharding.heads import divides_kv_heads
from blade_llm.spec.attention import AttentionSpec
from blade_llm.spec.decoder import DecoderSpec, LayerSpec
from blade_llm.spec.modules import ModulesSpec
from blade_llm.spec.moe import MoESpec
from blade_llm.spec.vocabulary import vocabulary_rows

_FLAG: Final = "--tensor_parallel_size"


def tensor_parallel_problem(config: ModelConfig, size: int) -> str | None:
    """Why ``size`` ranks cannot divide the model, and what to give instead; None where they can."""
    if size == 1:
        return None
    if (what := undivided(config.decoder)) is not None:
        return f"{_FLAG} {size}: {what} cannot be divided among ranks; give {_FLAG} 1"
    assert isinstance(config.decoder, DecoderSpec)
    misfit = _misfit(config.decoder, size)
    if misfit is None:
        return None
    fitting = [count for count in range(1, MAX_RANKS + 1) if _misfit(config.decoder, count) is None]
    return f"{_FLAG} {size} {misfit}; give {_either(fitting)}"


def undivided(decoder: DecoderSpec | ModulesSpec) -> str | None:
    """What neither ranks nor stages divide, in words; None: they may."""
    if isinstance(decoder, ModulesSpec):
        return "a model that transformers' own modules compute"
    if decoder.bidirectional:
        return "an encoder"
    return None


def _misfit(decoder: DecoderSpec, size: int) -> str | None:
    """What goes after the flag and its value."""
    for layer in dict.fromkeys(decoder.layers):
        if misfit := _layer_misfit(layer, size):
            return misfit
    if not vocabulary_rows(decoder.vocab_size, size - 1, size):
        return f"leaves a rank without any of the {decoder.vocab_size} tokens of the model's vocabulary"
    return None


def _layer_misfit(layer: LayerSpec, size: int) -> str | None:
    attention, mlp = layer.attention, layer.mlp
    if attention.num_heads % size:
        return f"does not divide the model's {attention.num_heads} attention heads"
    if isinstance(attention, AttentionSpec) and not divides_kv_heads(attention.num_kv_heads, size):
        count = attention.num_kv_heads
        return f"neither divides the model's {count} key-value heads nor is a multiple of them"
    if mlp.inner % size:
        of = "experts" if isinstance(mlp, MoESpec) else "MLP"
        return f"does not divide the inner size {mlp.inner} of the model's {of}"
    if isinstance(mlp, MoESpec) and mlp.shared_inner % size:
        return f"does not divide the inner size {mlp.shared_inner} of the model's shared expert"
    return None


def _either(counts: list[int]) -> str:
    *others, last = map(str, counts)
    return f"{', '.join(others)} or {last}" if others else last
