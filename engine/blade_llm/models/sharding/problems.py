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
_EXPERTS_FLAG: Final = "--enable_expert_parallel"


def tensor_parallel_problem(config: ModelConfig, size: int, *, expert_parallel: bool = False) -> str | None:
    """Why ``size`` ranks cannot divide the model, and what to give instead; None where they can.

    ``expert_parallel``: experts, where there are any, are divided as wholes.
    """
    if size == 1:
        return None
    if (what := undivided(config.decoder)) is not None:
        return f"{_FLAG} {size}: {what} cannot be divided among ranks; give {_FLAG} 1"
    assert isinstance(config.decoder, DecoderSpec)
    decoder = config.decoder
    misfit = _misfit(decoder, size, expert_parallel)
    if misfit is None:
        return None
    fitting = [count for count in range(1, MAX_RANKS + 1) if _misfit(decoder, count, expert_parallel) is None]
    return f"{_FLAG} {size} {misfit}; give {_either(fitting)}"


def expert_parallel_problem(config: ModelConfig) -> str | None:
    """Why ranks cannot divide the model's experts as wholes; None where they can, or where
    :func:`tensor_parallel_problem` says why they cannot divide the model."""
    decoder = config.decoder
    if undivided(decoder) is not None:
        return None
    assert isinstance(decoder, DecoderSpec)
    if any(isinstance(layer.mlp, MoESpec) for layer in decoder.layers):
        return None
    return f"{_EXPERTS_FLAG}: the model ({config.architecture}) has no experts; leave the flag out"


def undivided(decoder: DecoderSpec | ModulesSpec) -> str | None:
    """What neither ranks nor stages divide, in words; None: they may."""
    if isinstance(decoder, ModulesSpec):
        return "a model that transformers' own modules compute"
    if decoder.bidirectional:
        return "an encoder"
    return None


def _misfit(decoder: DecoderSpec, size: int, expert_parallel: bool) -> str | None:
    """What goes after the flag and its value."""
    for layer in dict.fromkeys(decoder.layers):
        if misfit := _layer_misfit(layer, size, expert_parallel):
            return misfit
    if not vocabulary_rows(decoder.vocab_size, size - 1, size):
        return f"leaves a rank without any of the {decoder.vocab_size} tokens of the model's vocabulary"
    return None


def _layer_misfit(layer: LayerSpec, size: int, expert_parallel: bool) -> str | None:
    attention, mlp = layer.attention, layer.mlp
    if attention.num_heads % size:
        return f"does not divide the model's {attention.num_heads} attention heads"
    if isinstance(attention, AttentionSpec) and not divides_kv_heads(attention.num_kv_heads, size):
        count = attention.num_kv_heads
        return f"neither divides the model's {count} key-value heads nor is a multiple of them"
    if expert_parallel and isinstance(mlp, MoESpec):
        if (experts := mlp.routing.num_experts) < size:
            return f"with {_EXPERTS_FLAG} leaves a rank without any of the {experts} experts of the model"
    elif mlp.inner % size:
        of = "experts" if isinstance(mlp, MoESpec) else "MLP"
        return f"does not divide the inner size {mlp.inner} of the model's {of}"
    if isinstance(mlp, MoESpec) and mlp.shared_inner % size:
        return f"does not divide the inner size {mlp.shared_inner} of the model's shared expert"
    return None


def _either(counts: list[int]) -> str:
    *others, last = map(str, counts)
    return f"{', '.join(others)} or {last}" if others else last
