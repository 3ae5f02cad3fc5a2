"""``check_memory_fit``: does the model fit into this machine's (or container's) memory with the server's own flags?

The plan is the engine's own, made before the weights are read: being killed for memory in the middle of loading says
nothing, this says which flag to change and to what. It plans for the CPU.
"""

from __future__ import annotations

import math
from typing import Final

from blade_llm.cache.memory_limit import memory_limit_bytes
from blade_llm.cache.sizing import KVCachePlan, default_kv_cache_bytes
from blade_llm.config import EngineConfig
from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.dtypes import resolve_dtype
from blade_llm.models.memory import activation_bytes, weight_bytes
from blade_llm.runner.startup.memory_plan import plan_kv_cache
from blade_protocol.check import CheckItem

NAME: Final = "check_memory_fit"
RUNTIME_BYTES: Final = 512 << 20
"""Interpreter and libraries of the API-server and the engine process."""
WARNING_SHARE: Final = 0.9
"""A plan that takes more of the limit than this leaves no room for the page cache or a second copy while loading."""


def check_memory_fit(config: EngineConfig, limit: int | None = None) -> CheckItem:
    """PASS when the plan takes at most 90 % of the memory limit, WARNING when more, FAILED when it does not fit.

    ``limit`` is in bytes, found by itself when ``None``.
    """
    try:
        return _judge(config, load_model_config(config.model_dir), memory_limit_bytes() if limit is None else limit)
    except ValueError as error:  # all that is wrong with a model, a length or the memory is one
        return CheckItem(name=NAME, status="FAILED", detail=str(error))


def _judge(config: EngineConfig, model: ModelConfig, limit: int) -> CheckItem:
    dtype = resolve_dtype(config.dtype, model.dtype, on_gpu=False, quantized=config.quant != "none")
    weights = weight_bytes(model, dtype, config.quant)
    activations = activation_bytes(
        model, dtype, max_batch_tokens=config.max_batch_tokens, max_num_seqs=config.max_num_seqs
    )
    given = default_kv_cache_bytes(limit=limit) if config.kv_cache_bytes is None else config.kv_cache_bytes
    plan = plan_kv_cache(config, model, dtype, given)
    kv_cache = plan.blocks * plan.block_bytes
    fixed = weights + activations + RUNTIME_BYTES
    total = fixed + kv_cache
    shortened = f", the model allows {model.max_position_embeddings}" if _is_shortened(config, model, plan) else ""
    detail = (
        f"{dtype}: weights {_size(weights)} + activations {_size(activations)} + runtime {_size(RUNTIME_BYTES)} "
        f"+ KV cache {_size(kv_cache)} ({plan.blocks} blocks, {plan.tokens} tokens, "
        f"{plan.concurrent_at_max_len:.1f} requests of {plan.max_model_len} tokens{shortened}) "
        f"= {_size(total)} of {_size(limit)}"
    )
    if total <= limit * WARNING_SHARE:
        return CheckItem(name=NAME, status="PASS", detail=detail)
    fits = total <= limit
    return CheckItem(
        name=NAME,
        status="WARNING" if fits else "FAILED",
        detail=f"{detail}; {'little is left' if fits else 'too much'}: {_remedy(plan, limit, fixed)}",
    )


def _is_shortened(config: EngineConfig, model: ModelConfig, plan: KVCachePlan) -> bool:
    """Whether the engine would serve less than the model's length because the cache is small."""
    return config.max_model_len is None and plan.max_model_len < model.max_position_embeddings


def _remedy(plan: KVCachePlan, limit: int, fixed: int) -> str:
    """The flags that bring the plan under the warning line, or the memory it takes."""
    blocks = (int(limit * WARNING_SHARE) - fixed) // plan.block_bytes
    needed = plan.blocks_of(plan.max_model_len)
    if blocks >= needed:
        return f"set --kv_cache_bytes {blocks * plan.block_bytes}"
    if blocks > 0:
        return f"set --kv_cache_bytes {blocks * plan.block_bytes} and --max_model_len {blocks * plan.block_size}"
    least = math.ceil((fixed + needed * plan.block_bytes) / WARNING_SHARE)
    return f"allow at least {_size(least)} of memory, or take a smaller model"


def _size(count: int) -> str:
    return f"{count} bytes ({count / 2**30:.2f} GiB)"
