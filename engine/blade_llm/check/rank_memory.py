"""What a rank's memory goes to, as the engine plans it, from the model's configuration and the server's flags alone.

``check_memory_fit`` judges it in an environment, and ``blade_llm_fit`` for a GPU or a limit that need not be there.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from blade_llm.cache.sizing import KVCachePlan, default_kv_cache_bytes, raise_kv_cache_bytes
from blade_llm.config import EngineConfig
from blade_llm.lora.memory import adapter_bytes
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTypeName, resolve_dtype
from blade_llm.models.errors import ModelFilesError, UnsupportedSettingError
from blade_llm.models.implementation import read_model_config
from blade_llm.models.memory import layer_activation_bytes, weight_bytes
from blade_llm.models.quantized.config import quant_problem
from blade_llm.models.sharding import (
    expert_parallel_problem,
    pipeline_parallel_problem,
    rank_model,
    tensor_parallel_problem,
)
from blade_llm.models.vision.memory import tower_bytes
from blade_llm.parallel.layout import RankLayout
from blade_llm.runner.draft_config import DraftModelConfig, draft_model_config
from blade_llm.runner.kv_quant import with_kv_quant
from blade_llm.runner.startup.memory_plan import GpuMemory, activation_peak, plan_kv_cache
from blade_llm.runner.vision.memory import encoder_bytes, tower_of
from blade_llm.weights.checkpoint import open_checkpoint

RUNTIME_BYTES: Final = 512 << 20
"""Interpreter and libraries of the API-server and the engine process."""
RANK_RUNTIME_BYTES: Final = 256 << 20
"""Interpreter and libraries of each further rank: 233 MB were measured."""
GRAPH_BYTES_PER_LAYER: Final = 512 << 10
"""Upper estimate of the device memory of one graph, by layer; the engine measures it when it starts."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Memory of the GPU that the engine will compute on, in bytes; of several, of the one that has the least."""

    free: int
    """Without what a CUDA context takes, as a process that has one measures it."""
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What one rank holds besides the KV cache, in bytes."""

    part: ModelConfig
    """What the rank has of the model."""
    draft: DraftModelConfig | None
    dtype: DTypeName
    weights: int
    activations: int
    """Upper estimate of a full step's working memory."""
    graphs: int
    """Upper estimate of CUDA graphs."""
    adapters: int
    draft_weights: int
    vision: int = 0
    """The vision tower, the encoder cache, and what encoding the largest image takes."""

    @property
    def lasting(self) -> int:
        """What stays between steps, but for graphs."""
        return self.weights + self.adapters + self.draft_weights + self.vision

    @property
    def fixed(self) -> int:
        """All of it."""
        return self.lasting + self.activations + self.graphs

    def block_bytes(self, plan: KVCachePlan) -> int:
        """Bytes of a block of the KV cache as ``--kv_cache_bytes`` counts them: of the model and of its draft model."""
        return plan.block_bytes + (0 if self.draft is None else self.draft.block_bytes)


def read_model(config: EngineConfig) -> ModelConfig:
    """The model that ``config`` serves, whole, with its KV cache as it is kept.

    Raises ``ValueError``, as :class:`~blade_llm.models.errors.ModelFilesError`, for what is wrong with it, or does not
    go together with ``config``.
    """
    model = read_model_config(config.model_dir, config.model_impl, config.task)
    experts = config.enable_expert_parallel
    problem = tensor_parallel_problem(model, config.tensor_parallel_size, expert_parallel=experts)
    problem = problem or (expert_parallel_problem(model) if experts else None)
    problem = problem or quant_problem(model.tensors, config.quant)
    if problem := problem or pipeline_parallel_problem(model, config.pipeline_parallel_size):
        raise UnsupportedSettingError(f"{config.model_dir}: {problem}")
    return with_kv_quant(model, config.kv_cache_quant, config.kv_cache_quant_sub_heads)


def memory_on_cpu(config: EngineConfig, model: ModelConfig, kv_cache_bytes: int) -> RankMemory:
    """Of the rank of this machine that takes most. ``kv_cache_bytes``: what all of them have for KV caches."""
    quantized = config.quant != "none" or model.tensors.quantized
    dtype = resolve_dtype(config.dtype, model.dtype, on_gpu=False, quantized=quantized)
    ranks = [rank_memory(config, part, dtype) for part in largest_parts(config, model, dtype)]

    def largest(rank: RankMemory) -> Fraction:
        return rank.weights + rank.draft_weights + kv_cache_bytes * rank.part.kv_share

    return max(ranks, key=largest)


def cache_on_cpu(config: EngineConfig, rank: RankMemory, kv_cache_bytes: int) -> KVCachePlan:
    """The rank's KV cache, as the engine plans it. Raises as ``plan_kv_cache``."""
    share = rank.part.kv_share
    return plan_kv_cache(
        config,
        rank.part,
        rank.dtype,
        int(kv_cache_bytes * share),
        lambda needed: raise_kv_cache_bytes(math.ceil(needed / share)),
        draft=rank.draft,
    )


def cache_bytes(config: EngineConfig, limit: int) -> int:
    """Bytes that all ranks of a machine with ``limit`` bytes of memory have for KV caches on CPU."""
    return default_kv_cache_bytes(limit=limit) if config.kv_cache_bytes is None else config.kv_cache_bytes


def memory_on_gpu(config: EngineConfig, model: ModelConfig) -> list[RankMemory]:
    """Of the rank of each stage that takes most."""
    dtype = resolve_dtype(config.dtype, model.dtype, on_gpu=True)
    parts = largest_parts(config, model, dtype, on_gpu=True)
    return [rank_memory(config, part, dtype, on_gpu=True) for part in parts]


def cache_on_gpu(config: EngineConfig, rank: RankMemory, gpu: Gpu) -> KVCachePlan:
    """The plan that the engine makes once it has measured, with estimates instead. Raises as ``plan_kv_cache``, with
    the flags to change where nothing fits."""
    memory = GpuMemory(
        total=gpu.total,
        free=gpu.free - rank.lasting,
        lasting=rank.lasting,
        activation_peak=rank.activations,
        graphs=rank.graphs,
        share=config.max_gpu_memory_utilization,
    )
    available = memory.kv_cache_for(config.kv_cache_bytes)
    return plan_kv_cache(config, rank.part, rank.dtype, available, memory.enlarge, draft=rank.draft)


def rank_memory(config: EngineConfig, part: ModelConfig, dtype: DTypeName, *, on_gpu: bool = False) -> RankMemory:
    """Of a rank that has ``part`` of the model."""
    draft = draft_model_config(config, part, dtype)
    tower, longest = tower_of(config, part), config.max_model_len or part.max_position_embeddings
    vision = encoder_bytes(config, part, dtype, longest) + (0 if tower is None else tower_bytes(tower, dtype))
    return RankMemory(
        part=part,
        draft=draft,
        dtype=dtype,
        weights=weight_bytes(part, dtype, config.quant, on_gpu=on_gpu),
        activations=activation_peak(config, part, dtype, draft),
        graphs=_graph_bytes(config, part, dtype) if on_gpu else 0,
        adapters=adapter_bytes(config, part, dtype, on_gpu=on_gpu),
        draft_weights=0 if draft is None else weight_bytes(draft.model, draft.dtype, "none", on_gpu=on_gpu),
        vision=vision,
    )


def largest_parts(
    config: EngineConfig, model: ModelConfig, dtype: DTypeName, *, on_gpu: bool = False
) -> list[ModelConfig]:
    """What the rank of each stage that has most of ``model``, of those on this machine, has of it. All ranks of a stage
    have as many heads, and so as much of the KV cache."""
    layout, names = RankLayout.of(config), _stored_names(config, model)
    stages: dict[int, list[ModelConfig]] = {}
    for rank in layout.ranks_of_node(config.node_rank):
        part = rank_model(model, layout, rank)
        if names is not None:
            part = replace(part, tensors=part.tensors.found_in(names))
        stages.setdefault(layout.stage_of(rank), []).append(part)

    def weights(part: ModelConfig) -> int:
        return weight_bytes(part, dtype, config.quant, on_gpu=on_gpu)

    return [max(parts, key=weights) for parts in stages.values()]


def _stored_names(config: EngineConfig, model: ModelConfig) -> Collection[str] | None:
    """Names of the tensors of a quantised checkpoint, which tell the weights that it left as they were; None where that
    is of no interest, or the files cannot be read, of which ``check_model`` says why."""
    if not model.tensors.quantized:
        return None
    try:
        return open_checkpoint(config.model_dir).names
    except ModelFilesError:
        return None


def _graph_bytes(config: EngineConfig, model: ModelConfig, dtype: DTypeName) -> int:
    """All graphs, and the working memory of the largest, which the others share; logits are none of their work."""
    # These need torch, which nothing else here does.
    from blade_llm.runner.graphs.decode import graph_batch_sizes
    from blade_llm.runner.graphs.mixed import graph_token_sizes

    if config.disable_cuda_graph or config.pipeline_parallel_size > 1:
        return 0
    sizes = graph_batch_sizes(config.cuda_graph_batch_sizes, config.cuda_graph_max_batch_size, config.max_num_seqs)
    tokens = graph_token_sizes(config.cuda_graph_token_sizes, config.cuda_graph_max_tokens, config.max_batch_tokens)
    shared = layer_activation_bytes(model, dtype, max((*sizes, *tokens)))
    sets = 2 if config.enable_lora else 1  # one for steps with adapters
    return sets * (len(sizes) + len(tokens)) * model.num_layers * GRAPH_BYTES_PER_LAYER + shared
