"""Tensor parallelism (Megatron-LM: Shoeybi et al., arXiv 1909.08053) and pipeline stages as specs and tensor maps: what
each rank has of a model. No torch, for ``blade_llm_check`` and the server.

Attention's heads and the inner dimension of every MLP, experts too, are divided among the ranks of a stage, which add
up what both halves of a layer compute; so are the rows of the embedding table and of the output matrix. With expert
parallelism (GShard: Lepikhin et al., arXiv 2006.16668) each rank has some experts whole instead of a part of each; as
all ranks have all tokens, sums stay what they are, and nothing is sent to and fro. All else is replicated. Stages
divide the layers (:mod:`blade_llm.models.sharding.stages`).
"""

from blade_llm.models.sharding.config import rank_model, shard_model
from blade_llm.models.sharding.problems import expert_parallel_problem, tensor_parallel_problem
from blade_llm.models.sharding.stages import pipeline_parallel_problem

__all__ = [
    "expert_parallel_problem",
    "pipeline_parallel_problem",
    "rank_model",
    "shard_model",
    "tensor_parallel_problem",
]
