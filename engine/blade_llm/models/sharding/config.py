"""The configuration of one rank's part of a model."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import UnsupportedModelError
from blade_llm.models.sharding.decoder import shard_decoder
from blade_llm.models.sharding.problems import expert_parallel_problem, tensor_parallel_problem
from blade_llm.models.sharding.stages import stage_model, stages_of
from blade_llm.models.sharding.tensors import shard_tensors
from blade_llm.parallel.layout import RankLayout
from blade_llm.spec.decoder import DecoderSpec
from blade_llm.spec.shard import Shard


def rank_model(config: ModelConfig, layout: RankLayout, rank: int) -> ModelConfig:
    """What rank ``rank`` has of the whole model: of every layer of its stage its part. Of one rank that is ``config``.

    Its ``kv_share`` is by layers, so that all ranks of its machine have as many blocks.

    Raises :class:`UnsupportedModelError` where tensor ranks or stages cannot divide the model, and for one without
    experts that are to be divided.
    """
    if layout.expert_parallel and (problem := expert_parallel_problem(config)):
        raise UnsupportedModelError(problem)
    own = shard_model(config, layout.tensor_rank_of(rank), layout.tensor, expert_parallel=layout.expert_parallel)
    if layout.size == 1:
        return own
    stages = stages_of(config, layout.pipeline)
    on_machine = sum(len(stages[layout.stage_of(each)].layers) for each in layout.ranks_of_node(layout.node_of(rank)))
    stage = stages[layout.stage_of(rank)]
    return replace(stage_model(own, stage), kv_share=Fraction(len(stage.layers), on_machine))


def shard_model(config: ModelConfig, rank: int, size: int, *, expert_parallel: bool = False) -> ModelConfig:
    """What rank ``rank`` of ``size`` has of the model: its heads and inner dimensions, its part of the checkpoint, its
    heads in the KV cache. ``vocab_size`` and ``hidden_size`` stay the model's. Of one rank that is ``config`` itself.

    ``expert_parallel``: experts are divided as wholes, where there are any.
    Raises :class:`UnsupportedModelError` where :func:`tensor_parallel_problem` finds something, ``ValueError`` for a
    ``rank`` that there is not, or a ``config`` that is a rank's already.
    """
    shard = Shard(rank, size, expert_parallel)
    if config.shard is not None:
        raise ValueError(f"this is rank {config.shard.rank}'s part of a model already")
    if size == 1:
        return config
    if problem := tensor_parallel_problem(config, size, expert_parallel=expert_parallel):
        raise UnsupportedModelError(problem)
    whole = config.decoder
    assert isinstance(whole, DecoderSpec)
    decoder = shard_decoder(whole, shard)
    return replace(
        config,
        decoder=decoder,
        tensors=shard_tensors(whole, config.tensors, shard),
        kv=replace(config.kv, num_heads=decoder.layers[0].attention.num_kv_heads),
        shard=shard,
    )
