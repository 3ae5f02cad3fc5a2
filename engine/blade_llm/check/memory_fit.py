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
from fractions import Fraction
from typing import Final

from blade_llm.cache.memory_limit import memory_limit_bytes
from blade_llm.cache.sizing import KVCachePlan
from blade_llm.check.rank_memory import (
    RANK_RUNTIME_BYTES,
    RUNTIME_BYTES,
    Gpu,
    RankMemory,
    cache_bytes,
    cache_on_cpu,
    cache_on_gpu,
    memory_on_cpu,
    memory_on_gpu,
    read_model,
)
from blade_llm.config import EngineConfig
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTypeName
from blade_llm.parallel.layout import RankLayout
from blade_protocol.check import CheckItem

NAME: Final = "check_memory_fit"
WARNING_SHARE: Final = 0.9
"""A plan that takes more of the limit than this leaves no room for the page cache or a second copy while loading."""


def check_memory_fit(config: EngineConfig, limit: int | None = None, gpu: Gpu | None = None) -> CheckItem:
    """Whether the plan fits.

    On a GPU: PASS or FAILED by the memory that is free and `EngineConfig.max_gpu_memory_utilization` of all of it. On
    CPU: PASS when the plan takes at most 90 % of the memory limit, WARNING when more, FAILED when it does not fit.

    ``limit`` is the host's in bytes; without it nor a ``gpu`` both are found by themselves.
    """
    try:
        model = read_model(config)
        found = _find_gpu(config.ranks_per_node) if limit is None and gpu is None else gpu
        if found is not None:
            return _judge_gpus(config, model, found)
        return _judge(config, model, memory_limit_bytes() if limit is None else limit)
    except ValueError as error:  # all that is wrong with a model, a length or the memory is one
        return CheckItem(name=NAME, status="FAILED", detail=str(error))


def _judge(config: EngineConfig, model: ModelConfig, limit: int) -> CheckItem:
    ranks, given = config.ranks_per_node, cache_bytes(config, limit)
    rank = memory_on_cpu(config, model, given)
    plan = cache_on_cpu(config, rank, given)
    block_bytes, share = rank.block_bytes(plan), rank.part.kv_share
    kv_cache = plan.blocks * block_bytes
    of_rank = rank.fixed
    runtime = RUNTIME_BYTES + (ranks - 1) * RANK_RUNTIME_BYTES
    fixed = ranks * of_rank + runtime
    total = fixed + ranks * kv_cache
    shortened = f", the model allows {model.max_position_embeddings}" if _is_shortened(config, model, plan) else ""
    shared = f"+ runtime {_size(runtime)} "
    detail = (
        f"{_of_ranks(rank.dtype, config)}: weights {_size(rank.weights)} + activations {_size(rank.activations)} "
        f"{shared if ranks == 1 else ''}{_with_others(rank)}"
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
    judged = [_judge_gpu(config, model, rank, gpu) for rank in memory_on_gpu(config, model)]
    return min(judged, key=lambda each: each[0])[1]


def _judge_gpu(config: EngineConfig, model: ModelConfig, rank: RankMemory, gpu: Gpu) -> tuple[int, CheckItem]:
    """Whether ``rank`` fits; and the blocks of its plan, -1 where it fails."""
    share = config.max_gpu_memory_utilization
    within = min(int(gpu.total * share), gpu.free)
    parts = (
        f"{_of_ranks(rank.dtype, config)}: weights {_size(rank.weights)} "
        f"+ activations {_size(rank.activations)} + CUDA graphs {_size(rank.graphs)} "
        f"{_with_others(rank)}of {_size(within)} "
        f"({share:g} of the GPU's {_size(gpu.total)}, {_size(gpu.free)} free)"
    )
    if rank.fixed >= within:
        return -1, CheckItem(name=NAME, status="FAILED", detail=f"{parts}; too much: {_gpu_remedy(rank.fixed, gpu)}")
    try:
        plan = cache_on_gpu(config, rank, gpu)
    except ValueError as error:
        return -1, CheckItem(name=NAME, status="FAILED", detail=f"{parts}; {error}")
    shortened = f", the model allows {model.max_position_embeddings}" if _is_shortened(config, model, plan) else ""
    kv_cache = (
        f"KV cache {_size(plan.blocks * rank.block_bytes(plan))} ({plan.blocks} blocks, {plan.tokens} tokens, "
        f"{plan.concurrent_at_max_len:.1f} requests of {plan.max_model_len} tokens{shortened})"
    )
    return plan.blocks, CheckItem(name=NAME, status="PASS", detail=f"{parts}; {kv_cache}")


def _of_ranks(dtype: DTypeName, config: EngineConfig) -> str:
    if config.num_ranks == 1:
        return dtype
    if config.nnodes == 1:
        return f"{dtype}, each of {config.num_ranks} ranks"
    ranks = RankLayout.of(config).ranks_of_node(config.node_rank)
    which = f"rank {ranks[0]}" if len(ranks) == 1 else f"each of ranks {ranks[0]} to {ranks[-1]}"
    return f"{dtype}, machine {config.node_rank}: {which}"


def _with_others(rank: RankMemory) -> str:
    """Of what not every model has."""
    others = {"adapters": rank.adapters, "draft model": rank.draft_weights, "vision tower and images": rank.vision}
    return "".join(f"+ {name} {_size(count)} " for name, count in others.items() if count)


def _gpu_remedy(fixed: int, gpu: Gpu) -> str:
    """What to change where weights, a step and graphs, ``fixed`` bytes, leave nothing for the KV cache."""
    if fixed < gpu.free:
        return f"raise --max_gpu_memory_utilization to more than {math.ceil(fixed / gpu.total * 1000) / 1000:g}"
    return (
        f"the GPU lacks at least {fixed - gpu.free} bytes: take --quant int8 or int4, lower "
        "--ragged_flash_max_batch_tokens or --max_num_seqs, give --disable_cuda_graph, or take a smaller model"
    )


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
