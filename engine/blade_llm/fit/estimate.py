"""The estimate: where the memory goes, how many requests fit, how fast a step can be at best, and what tokens cost.

Memory is the engine's own plan (:mod:`blade_llm.check.rank_memory`) and the verdict is ``check_memory_fit``'s; only the
device need not be here.
"""

from __future__ import annotations

from dataclasses import dataclass

from blade_llm.cache.sizing import KVCachePlan, kv_token_bytes
from blade_llm.check.memory_fit import check_memory_fit
from blade_llm.check.rank_memory import (
    RANK_RUNTIME_BYTES,
    RUNTIME_BYTES,
    RankMemory,
    cache_bytes,
    cache_on_cpu,
    cache_on_gpu,
    memory_on_cpu,
    memory_on_gpu,
    read_model,
)
from blade_llm.config import EngineConfig
from blade_llm.fit.gpus import GpuModel
from blade_llm.fit.roofline import Roofline
from blade_llm.models.config import ModelConfig
from blade_llm.models.errors import NotEnoughMemoryError
from blade_llm.models.memory import rotation_bytes


@dataclass(frozen=True, slots=True)
class Device:
    """What the model shall compute on: GPUs of one kind, or CPUs with a memory limit."""

    gpu: GpuModel | None
    limit: int
    """Bytes of memory on CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Upper bounds by the roofline model."""

    batch: int
    """Requests at once."""
    context: int
    """Tokens that each of them has."""
    tpot_ms: float
    """Milliseconds between tokens of one request."""
    tokens_per_second: float
    """Tokens of all requests together."""
    prefill_tokens_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a model takes, in bytes for each rank; on several, of the one that takes most."""

    architecture: str
    dtype: str
    ranks: int
    context: int
    """Tokens of the requests that ``concurrency`` counts."""
    weights: int
    """With the tables of rotary angles."""
    activations: int
    graphs: int
    adapters: int
    draft: int
    vision: int
    """The vision tower, its cache, and what encoding an image takes."""
    runtime: int
    """Interpreters and libraries of all ranks of the machine, where they count: on CPU."""
    kv_token: int
    """Bytes of a token's keys and values."""
    kv_cache: int
    """0, like what follows, where the plan does not come about."""
    kv_tokens: int
    max_model_len: int
    concurrency: float
    """Requests of ``context`` tokens that fit at once, at most ``--max_num_seqs``."""
    fits: bool
    verdict: str
    """The numbers, and the flag to change, as ``check_memory_fit`` says it."""
    speed: Speed | None = None


def estimate(config: EngineConfig, device: Device, context: int | None = None) -> Estimate:
    """The estimate for ``config`` on ``device``. ``context``: tokens of a typical request, of prompt and answer; by
    itself the longest there may be.

    Raises ``ValueError``, as :class:`~blade_llm.models.errors.ModelFilesError`, for a model that cannot be read or does
    not go together with the flags, and for a context beyond the model's.
    """
    model = read_model(config)
    longest = config.max_model_len or model.max_position_embeddings
    if context is not None and context > longest:
        raise ValueError(f"--context {context} is more than one request may have, {longest}; lower it")
    if device.gpu is None:
        ranks, plans = _on_cpu(config, model, device.limit)
        judged = check_memory_fit(config, limit=device.limit)
    else:
        ranks, plans = _on_gpu(config, model, device.gpu)
        judged = check_memory_fit(config, gpu=device.gpu.memory)
    known = [plan for plan in plans if plan is not None]
    plan = min(known, key=lambda each: each.blocks) if len(known) == len(plans) else None
    rank = ranks[plans.index(plan)] if plan is not None else max(ranks, key=lambda each: each.fixed)
    length = min(context or longest, longest if plan is None else plan.max_model_len)
    concurrency = 0.0 if plan is None else min(plan.blocks / plan.blocks_of(length), float(config.max_num_seqs))
    fits = plan is not None and judged.status != "FAILED"
    on_cpu = RUNTIME_BYTES + (config.ranks_per_node - 1) * RANK_RUNTIME_BYTES if device.gpu is None else 0
    return Estimate(
        architecture=model.architecture,
        dtype=rank.dtype,
        ranks=config.num_ranks,
        context=length,
        weights=rank.weights + rotation_bytes(rank.part, longest if plan is None else plan.max_model_len),
        activations=rank.activations,
        graphs=rank.graphs,
        adapters=rank.adapters,
        draft=rank.draft_weights,
        vision=rank.vision,
        runtime=on_cpu,
        kv_token=kv_token_bytes(rank.part, rank.dtype),
        kv_cache=0 if plan is None else plan.blocks * rank.block_bytes(plan),
        kv_tokens=0 if plan is None else plan.tokens,
        max_model_len=0 if plan is None else plan.max_model_len,
        concurrency=concurrency,
        fits=fits,
        verdict=judged.detail,
        speed=_speed(ranks, device.gpu, concurrency, length) if fits and device.gpu else None,
    )


def _on_cpu(config: EngineConfig, model: ModelConfig, limit: int) -> tuple[list[RankMemory], list[KVCachePlan | None]]:
    given = cache_bytes(config, limit)
    rank = memory_on_cpu(config, model, given)
    try:
        return [rank], [cache_on_cpu(config, rank, given)]
    except NotEnoughMemoryError:
        return [rank], [None]


def _on_gpu(
    config: EngineConfig, model: ModelConfig, gpu: GpuModel
) -> tuple[list[RankMemory], list[KVCachePlan | None]]:
    """Of each stage."""
    ranks = memory_on_gpu(config, model)
    plans: list[KVCachePlan | None] = []
    for rank in ranks:
        try:
            plans.append(cache_on_gpu(config, rank, gpu.memory))
        except NotEnoughMemoryError:
            plans.append(None)
    return ranks, plans


def _speed(ranks: list[RankMemory], gpu: GpuModel, concurrency: float, context: int) -> Speed:
    """Of stages that have as many steps in flight as there are of them."""
    batch, stages = max(1, int(concurrency)), len(ranks)
    in_step = -(-batch // stages)
    roofs = [Roofline(rank, gpu) for rank in ranks]
    step = stages * max(roof.decode_seconds(in_step, context) for roof in roofs)
    prefill = max(roof.prefill_seconds(context) for roof in roofs)
    return Speed(
        batch=batch,
        context=context,
        tpot_ms=step * 1e3,
        tokens_per_second=batch / step,
        prefill_tokens_per_second=context / prefill,
    )
