"""``check_memory_fit``: does the model fit into this machine's (or container's) memory with the server's own flags?

The plan is the server's (``models.memory``), made before the weights are read: being killed for memory in the middle of
loading says nothing, this says which flag to change and to what.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blade_llm.models.config import ModelConfig, load_model_config
from blade_llm.models.dtypes import DTYPE_BYTES, resolve_dtype
from blade_llm.models.errors import ModelFilesError, NotEnoughMemoryError
from blade_llm.models.families import expected_tensors
from blade_llm.models.memory import (
    KvPlan,
    activation_bytes,
    default_kv_cache_bytes,
    memory_limit_bytes,
    plan_blocks,
)
from blade_protocol.check import CheckItem

NAME: Final = "check_memory_fit"
RUNTIME_BYTES: Final = 512 << 20
"""Interpreter and libraries of the front and the engine process."""
WARNING_SHARE: Final = 0.9
"""A plan that takes more of the limit than this leaves no room for the page cache or a second copy while loading."""


@dataclass(frozen=True, slots=True)
class MemoryFlags:
    """The server's flags that decide about memory; ``None`` is the server's default."""

    kv_cache_bytes: int | None = None
    max_model_len: int | None = None
    dtype: str = "auto"
    max_num_seqs: int = 64
    max_batch_tokens: int = 2048


def check_memory_fit(model_dir: Path, flags: MemoryFlags, limit: int | None = None) -> CheckItem:
    """PASS when the plan takes at most 90 % of the memory limit, WARNING when more, FAILED when it does not fit.

    ``limit`` is in bytes, found by itself when ``None``.
    """
    try:
        config = load_model_config(model_dir)
        return _judge(config, flags, memory_limit_bytes() if limit is None else limit)
    except (ModelFilesError, NotEnoughMemoryError, ValueError) as error:
        return CheckItem(name=NAME, status="FAILED", detail=str(error))


def _judge(config: ModelConfig, flags: MemoryFlags, limit: int) -> CheckItem:
    dtype = resolve_dtype(flags.dtype, config.dtype, on_gpu=False)
    weights = sum(math.prod(shape) for shape in expected_tensors(config).values()) * DTYPE_BYTES[dtype]
    activations = activation_bytes(
        config, dtype, max_batch_tokens=flags.max_batch_tokens, max_num_seqs=flags.max_num_seqs
    )
    kv_cache = default_kv_cache_bytes(limit=limit) if flags.kv_cache_bytes is None else flags.kv_cache_bytes
    plan = plan_blocks(config, dtype, kv_cache_bytes=kv_cache, max_model_len=flags.max_model_len)
    fixed = weights + activations + RUNTIME_BYTES
    total = fixed + kv_cache
    detail = (
        f"{dtype}: weights {_size(weights)} + activations {_size(activations)} + runtime {_size(RUNTIME_BYTES)} "
        f"+ KV cache {_size(kv_cache)} ({plan.blocks} blocks, {plan.tokens} tokens, "
        f"{plan.concurrent_at_max_len:.1f} requests of {plan.max_model_len} tokens) = {_size(total)} of {_size(limit)}"
    )
    if total <= limit * WARNING_SHARE:
        return CheckItem(name=NAME, status="PASS", detail=detail)
    fits = total <= limit
    return CheckItem(
        name=NAME,
        status="WARNING" if fits else "FAILED",
        detail=f"{detail}; {'little is left' if fits else 'too much'}: {_remedy(plan, limit, fixed)}",
    )


def _remedy(plan: KvPlan, limit: int, fixed: int) -> str:
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
