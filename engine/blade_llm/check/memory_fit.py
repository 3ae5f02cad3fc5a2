"""``check_memory_fit``: does the model fit into the memory it will compute in, with the server's own flags?

The plan is the engine's own, made before the weights are read: being killed for memory in the middle of loading says
nothing, this says which flag to change and to what. Where there is a GPU, its memory counts, and the share of it that
the engine may fill; else the machine's (or container's).

Of several ranks, the plan is that of the one that takes most; of pipeline stages on GPUs, that of the stage with the
least room for the KV cache. On GPUs it has to fit into the device with the least memory; on CPU all ranks have to fit
into the memory that they share. Of several machines it is about the ranks of this one.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from blade_llm.cache.memory_limit import memory_limit_bytes
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
from blade_llm.parallel.layout import RankLayout
from blade_llm.runner.draft_config import DraftModelConfig, draft_model_config
from blade_llm.runner.kv_quant import with_kv_quant
from blade_llm.runner.startup.memory_plan import GpuMemory, activation_peak, plan_kv_cache
from blade_llm.weights.checkpoint import open_checkpoint
from blade_protocol.check import CheckItem

NAME: Final = "check_memory_fit"
RUNTIME_BYTES: Final = 512 << 20
"""Interpreter and libraries of the API-server and the engine process."""
RANK_RUNTIME_BYTES: Final = 256 << 20
"""Interpreter and libraries of each further rank: 233 MB were measured."""
GRAPH_BYTES_PER_LAYER: Final = 512 << 10
"""Upper estimate of the device memory of one graph, by layer; the engine measures it when it starts."""
WARNING_SHARE: Final = 0.9
"""A plan that takes more of the limit than this leaves no room for the page cache or a second copy while loading."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """Memory of the GPU that the engine will compute on, in bytes; of several, of the one that has the least."""

    free: int
    """Without what a CUDA context takes, as a process that has one measures it."""
    total: int


def check_memory_fit(config: EngineConfig, limit: int | None = None, gpu: Gpu | None = None) -> CheckItem:
    """Whether the plan fits.

    On a GPU: PASS or FAILED by the memory that is free and `EngineConfig.max_gpu_memory_utilization` of all of it. On
    CPU: PASS when the plan takes at most 90 % of the memory limit, WARNING when more, FAILED when it does not fit.

    ``limit`` is the host's in bytes; without it nor a ``gpu`` both are found by themselves.
    """
    try:
        model = read_model_config(config.model_dir, config.model_impl, config.task)
        experts = config.enable_expert_parallel
        problem = tensor_parallel_problem(model, config.tensor_parallel_size, expert_parallel=experts)
        problem = problem or (expert_parallel_problem(model) if experts else None)
        problem = problem or quant_problem(model.tensors, config.quant)
        if problem := problem or pipeline_parallel_problem(model, config.pipeline_parallel_size):
            raise UnsupportedSettingError(f"{config.model_dir}: {problem}")
        model = with_kv_quant(model, config.kv_cache_quant, config.kv_cache_quant_sub_heads)
        found = _find_gpu(config.ranks_per_node) if limit is None and gpu is None else gpu
        if found is not None:
            return _judge_gpus(config, model, found)
        return _judge(config, model, memory_limit_bytes() if limit is None else limit)
    except ValueError as error:  # all that is wrong with a model, a length or the memory is one
        return CheckItem(name=NAME, status="FAILED", detail=str(error))


def _judge(config: EngineConfig, model: ModelConfig, limit: int) -> CheckItem:
    quantized = config.quant != "none" or model.tensors.quantized
    dtype = resolve_dtype(config.dtype, model.dtype, on_gpu=False, quantized=quantized)
    ranks = config.ranks_per_node
    given = default_kv_cache_bytes(limit=limit) if config.kv_cache_bytes is None else config.kv_cache_bytes
    parts = _largest_parts(config, model, dtype)
    of_parts = [(part, draft_model_config(config, part, dtype)) for part in parts]

    def largest(of_part: tuple[ModelConfig, DraftModelConfig | None]) -> Fraction:
        part, draft = of_part
        return weight_bytes(part, dtype, config.quant) + _draft_weights(draft) + given * part.kv_share

    part, draft = max(of_parts, key=largest)
    weights, share = weight_bytes(part, dtype, config.quant), part.kv_share
    activations = activation_peak(config, part, dtype, draft)
    plan = plan_kv_cache(
        config,
        part,
        dtype,
        int(given * share),
        lambda needed: raise_kv_cache_bytes(math.ceil(needed / share)),
        draft=draft,
    )
    block_bytes = _block_bytes(plan, draft)
    kv_cache = plan.blocks * block_bytes
    adapters = adapter_bytes(config, part, dtype, on_gpu=False)
    drafting = _draft_weights(draft)
    of_rank = weights + activations + adapters + drafting
    runtime = RUNTIME_BYTES + (ranks - 1) * RANK_RUNTIME_BYTES
    fixed = ranks * of_rank + runtime
    total = fixed + ranks * kv_cache
    shortened = f", the model allows {model.max_position_embeddings}" if _is_shortened(config, model, plan) else ""
    shared = f"+ runtime {_size(runtime)} "
    detail = (
        f"{_of_ranks(dtype, config)}: weights {_size(weights)} + activations {_size(activations)} "
        f"{shared if ranks == 1 else ''}{_with_adapters(adapters)}{_with_draft(drafting)}"
        f"+ KV cache {_size(kv_cache)} ({plan.blocks} blocks, {plan.tokens} tokens, "
        f"{plan.concurrent_at_max_len:.1f} requests of {plan.max_model_len} tokens{shortened}) "
        f"{'' if ranks == 1 else f'= {_size(of_rank + kv_cache)}, times {ranks} {shared}'}"
        f"= {_size(total)} of {_size(limit)}"
    )
    if total <= limit * WARNING_SHARE:
        return CheckItem(name=NAME, status="PASS", detail=detail)
    fits = total <= limit
    remedy = _remedy(plan, limit, fixed, ranks * block_bytes, block_bytes / share)
    return CheckItem(
        name=NAME,
        status="WARNING" if fits else "FAILED",
        detail=f"{detail}; {'little is left' if fits else 'too much'}: {remedy}",
    )


def _judge_gpus(config: EngineConfig, model: ModelConfig, gpu: Gpu) -> CheckItem:
    """That of the stage with the least room for blocks, as all have as many."""
    dtype = resolve_dtype(config.dtype, model.dtype, on_gpu=True)
    judged = [_judge_gpu(config, model, part, gpu) for part in _largest_parts(config, model, dtype, on_gpu=True)]
    return min(judged, key=lambda each: each[0])[1]


def _judge_gpu(config: EngineConfig, model: ModelConfig, part: ModelConfig, gpu: Gpu) -> tuple[int, CheckItem]:
    """The plan that the engine makes once it has measured, with estimates instead; and its blocks, -1 where it fails.

    Raises `NotEnoughMemoryError` with the flags to change where nothing fits. ``part``: what a rank has of ``model``.
    """
    dtype = resolve_dtype(config.dtype, model.dtype, on_gpu=True)
    weights = weight_bytes(part, dtype, config.quant, on_gpu=True)
    draft = draft_model_config(config, part, dtype)
    activations = activation_peak(config, part, dtype, draft)
    graphs = _graph_bytes(config, part, dtype)
    adapters = adapter_bytes(config, part, dtype, on_gpu=True)
    drafting = _draft_weights(draft, on_gpu=True)
    share = config.max_gpu_memory_utilization
    within = min(int(gpu.total * share), gpu.free)
    parts = (
        f"{_of_ranks(dtype, config)}: weights {_size(weights)} "
        f"+ activations {_size(activations)} + CUDA graphs {_size(graphs)} "
        f"{_with_adapters(adapters)}{_with_draft(drafting)}of {_size(within)} "
        f"({share:g} of the GPU's {_size(gpu.total)}, {_size(gpu.free)} free)"
    )
    if (fixed := weights + activations + graphs + adapters + drafting) >= within:
        return -1, CheckItem(name=NAME, status="FAILED", detail=f"{parts}; too much: {_gpu_remedy(fixed, gpu)}")
    memory = GpuMemory(
        total=gpu.total,
        free=gpu.free - weights - adapters - drafting,
        lasting=weights + adapters + drafting,
        activation_peak=activations,
        graphs=graphs,
        share=share,
    )
    try:
        available = memory.kv_cache_for(config.kv_cache_bytes)
        plan = plan_kv_cache(config, part, dtype, available, memory.enlarge, draft=draft)
    except ValueError as error:
        return -1, CheckItem(name=NAME, status="FAILED", detail=f"{parts}; {error}")
    shortened = f", the model allows {model.max_position_embeddings}" if _is_shortened(config, model, plan) else ""
    kv_cache = (
        f"KV cache {_size(plan.blocks * _block_bytes(plan, draft))} ({plan.blocks} blocks, {plan.tokens} tokens, "
        f"{plan.concurrent_at_max_len:.1f} requests of {plan.max_model_len} tokens{shortened})"
    )
    return plan.blocks, CheckItem(name=NAME, status="PASS", detail=f"{parts}; {kv_cache}")


def _largest_parts(
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


def _of_ranks(dtype: DTypeName, config: EngineConfig) -> str:
    if config.num_ranks == 1:
        return dtype
    if config.nnodes == 1:
        return f"{dtype}, each of {config.num_ranks} ranks"
    ranks = RankLayout.of(config).ranks_of_node(config.node_rank)
    which = f"rank {ranks[0]}" if len(ranks) == 1 else f"each of ranks {ranks[0]} to {ranks[-1]}"
    return f"{dtype}, machine {config.node_rank}: {which}"


def _with_adapters(count: int) -> str:
    return f"+ adapters {_size(count)} " if count else ""


def _draft_weights(draft: DraftModelConfig | None, *, on_gpu: bool = False) -> int:
    return 0 if draft is None else weight_bytes(draft.model, draft.dtype, "none", on_gpu=on_gpu)


def _block_bytes(plan: KVCachePlan, draft: DraftModelConfig | None) -> int:
    """Bytes of a block of the KV cache as ``--kv_cache_bytes`` counts them: of the model and of its draft model."""
    return plan.block_bytes + (0 if draft is None else draft.block_bytes)


def _with_draft(count: int) -> str:
    return f"+ draft model {_size(count)} " if count else ""


def _gpu_remedy(fixed: int, gpu: Gpu) -> str:
    """What to change where weights, a step and graphs, ``fixed`` bytes, leave nothing for the KV cache."""
    if fixed < gpu.free:
        return f"raise --max_gpu_memory_utilization to more than {math.ceil(fixed / gpu.total * 1000) / 1000:g}"
    return (
        f"the GPU lacks at least {fixed - gpu.free} bytes: take --quant int8 or int4, lower "
        "--ragged_flash_max_batch_tokens or --max_num_seqs, give --disable_cuda_graph, or take a smaller model"
    )


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


def _find_gpu(ranks: int) -> Gpu | None:
    """The GPU that an engine started here would take, or the one with the least memory of those that its ranks would
    take; None without any.

    Raises :class:`~blade_llm.models.errors.UnsupportedSettingError` where there are fewer than ranks.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    from blade_llm.runner.device import require_devices

    require_devices(ranks)
    memory = [torch.cuda.mem_get_info(index) for index in range(ranks)]
    return Gpu(free=min(free for free, _ in memory), total=min(total for _, total in memory))


def _is_shortened(config: EngineConfig, model: ModelConfig, plan: KVCachePlan) -> bool:
    """Whether the engine would serve less than the model's length because the cache is small."""
    return config.max_model_len is None and plan.max_model_len < model.max_position_embeddings


def _remedy(plan: KVCachePlan, limit: int, fixed: int, block_bytes: int, flag_bytes: Fraction) -> str:
    """The flags that bring the plan under the warning line, or the memory it takes.

    ``block_bytes``: of a block on all ranks, ``flag_bytes``: what ``--kv_cache_bytes`` says for one.
    """
    blocks = (int(limit * WARNING_SHARE) - fixed) // block_bytes if block_bytes else 0
    needed = plan.blocks_of(plan.max_model_len)
    flag = f"set --kv_cache_bytes {math.ceil(blocks * flag_bytes)}"
    if blocks >= needed:
        return flag
    if blocks > 0:
        return f"{flag} and --max_model_len {blocks * plan.block_size}"
    least = math.ceil((fixed + needed * block_bytes) / WARNING_SHARE)
    return f"allow at least {_size(least)} of memory, or take a smaller model"


def _size(count: int) -> str:
    return f"{count} bytes ({count / 2**30:.2f} GiB)"
