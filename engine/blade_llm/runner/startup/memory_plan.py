"""The memory plan: the KV blocks that the runner allocates, and the figures it reports."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from blade_llm.cache.sizing import BLOCK_SIZE, KVCachePlan, kv_block_bytes, plan_blocks, raise_kv_cache_bytes
from blade_llm.config import EngineConfig
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTypeName
from blade_llm.models.errors import NotEnoughMemoryError
from blade_llm.models.memory import activation_bytes
from blade_llm.runner.draft_config import DraftModelConfig
from blade_protocol.state import MemoryPlan

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """The use of a GPU's memory, in bytes, once everything but the KV cache was measured."""

    total: int
    free: int
    """Bytes that no process uses, with weights, context and kernels of this one in place."""
    lasting: int
    """Weights and kernels of this process; its CUDA context was there before anything could be measured."""
    activation_peak: int
    graphs: int
    share: float
    """``--max_gpu_memory_utilization``: the part of ``total`` that this process may fill."""

    @property
    def spare(self) -> int:
        """Bytes that no process uses, and neither a step nor graphs will."""
        return max(0, self.free - self.activation_peak - self.graphs)

    @property
    def kv_cache(self) -> int:
        """Bytes that remain for the KV cache: within our share, and within what other processes leave."""
        transient = self.activation_peak + self.graphs
        return max(0, min(int(self.total * self.share) - self.lasting, self.free) - transient)

    def kv_cache_for(self, requested: int | None) -> int:
        """Bytes of the KV cache when ``--kv_cache_bytes`` requests so many; None: all that remains.

        Raises :class:`NotEnoughMemoryError` for more than remains.
        """
        if requested is not None and requested > self.kv_cache:
            raise NotEnoughMemoryError(
                f"--kv_cache_bytes {requested} is more than what remains of the GPU; lower it to {self.kv_cache}, or "
                f"{self.enlarge(requested)}"
            )
        return self.kv_cache if requested is None else requested

    def enlarge(self, needed: int) -> str:
        """Advice for a KV cache of ``needed`` bytes."""
        missing = needed - self.kv_cache
        transient = self.activation_peak + self.graphs
        if needed + transient <= min(self.free, self.total - self.lasting):
            share = math.ceil((needed + transient + self.lasting) / self.total * 1000) / 1000
            return f"raise --max_gpu_memory_utilization to {min(share, 1.0)}"
        return (
            f"the GPU lacks {missing} bytes: free them (other processes hold "
            f"{max(0, self.total - self.free - self.lasting)}), lower --ragged_flash_max_batch_tokens or "
            f"--max_num_seqs (a step's peak is {self.activation_peak}), or give --disable_cuda_graph"
        )


def activation_peak(
    config: EngineConfig, model: ModelConfig, dtype: DTypeName, draft: DraftModelConfig | None = None
) -> int:
    """Upper estimate of the working memory of a full step, in bytes. ``draft``: what drafts, which may need more."""
    of_model = activation_bytes(
        model, dtype, max_batch_tokens=config.max_batch_tokens, max_num_seqs=config.max_num_seqs
    )
    return of_model + (0 if draft is None else draft.activation_bytes(config.max_batch_tokens))


def plan_kv_cache(
    config: EngineConfig,
    model: ModelConfig,
    dtype: DTypeName,
    kv_cache_bytes: int,
    enlarge: Callable[[int], str] = raise_kv_cache_bytes,
    *,
    draft: DraftModelConfig | None = None,
) -> KVCachePlan:
    """Divide ``kv_cache_bytes`` into blocks, no more than ``max_num_seqs`` full requests could use.

    A length the user did not request is shortened to what fits, with a warning. ``enlarge`` says what to change for a
    cache of so many bytes. ``draft``: what drafts, and keeps a part of each block's bytes.
    Raises :class:`NotEnoughMemoryError` when a requested length, or a single block, does not fit, and ``ValueError``
    for one beyond the model's own.
    """
    block_bytes = kv_block_bytes(model, dtype)
    if not block_bytes:
        return _plan_whole_sequences(config, model)
    if draft is not None:
        both = block_bytes + draft.block_bytes
        kv_cache_bytes = kv_cache_bytes * block_bytes // both
        enlarge = partial(_enlarge_both, enlarge, block_bytes, both)
    fitting = kv_cache_bytes // block_bytes
    if config.max_kv_blocks is not None:
        fitting = min(fitting, config.max_kv_blocks)
    length = config.max_model_len or model.max_position_embeddings
    if config.max_model_len is None and 0 < fitting * BLOCK_SIZE < length:
        logger.warning(
            "the KV cache holds %d tokens: max_model_len is %d instead of the model's %d; %s for the full length",
            fitting * BLOCK_SIZE,
            fitting * BLOCK_SIZE,
            length,
            enlarge(-(-length // BLOCK_SIZE) * block_bytes),
        )
        length = fitting * BLOCK_SIZE
    # The plan for all the bytes reports what does not fit; the real one is cut down to what can be used.
    plan = plan_blocks(model, dtype, kv_cache_bytes=kv_cache_bytes, max_model_len=length, enlarge=enlarge)
    needed = plan.blocks_of(length)
    if fitting < needed:
        raise NotEnoughMemoryError(
            f"one request of {length} tokens needs {needed} KV blocks, max_kv_blocks allows {fitting}; "
            f"raise it to {needed}, or lower --max_model_len to {fitting * BLOCK_SIZE}"
        )
    blocks = min(fitting, config.max_num_seqs * needed)
    return plan_blocks(model, dtype, kv_cache_bytes=blocks * block_bytes, max_model_len=length)


def _enlarge_both(enlarge: Callable[[int], str], of_target: int, of_both: int, needed: int) -> str:
    """Advice for a cache of the target of ``needed`` bytes; that of the draft model comes on top."""
    return enlarge(-(-needed * of_both // of_target))


def _plan_whole_sequences(config: EngineConfig, model: ModelConfig) -> KVCachePlan:
    """Of an encoder: blocks that take no memory, as many as all slots could use; one step holds a whole sequence."""
    own, budget = model.max_position_embeddings, config.max_batch_tokens
    length = config.max_model_len or min(own, budget)
    if length > own:
        raise ValueError(
            f"--max_model_len {length} is more than the model's own length; lower it to at most {own} "
            "('max_position_embeddings' in config.json)"
        )
    if length > budget:
        raise ValueError(
            f"one step of this model holds a whole text: raise --ragged_flash_max_batch_tokens to {length}, "
            f"or lower --max_model_len to {budget}"
        )
    if config.max_model_len is None and length < own:
        logger.warning(
            "one step of this model holds a whole text: max_model_len is %d instead of the model's %d; "
            "raise --ragged_flash_max_batch_tokens to %d for the full length",
            length,
            own,
            own,
        )
    blocks = config.max_num_seqs * -(-length // BLOCK_SIZE)
    return KVCachePlan(block_size=BLOCK_SIZE, block_bytes=0, blocks=blocks, max_model_len=length)


def memory_plan(
    kv: KVCachePlan,
    *,
    weights: int,
    activation_peak: int,
    graphs: int = 0,
    lora: int = 0,
    draft: int = 0,
    encoder: int = 0,
    device: str = "",
    spare: int | None = None,
) -> MemoryPlan:
    """The numbers, in bytes, as the engine reports them.

    ``spare``: bytes of a GPU that no process used before the KV cache was there, less those of a step and of graphs;
    None on a host.
    """
    kv_cache = kv.blocks * kv.block_bytes
    return MemoryPlan(
        device=device,
        free=None if spare is None else max(0, spare - kv_cache),
        weights=weights,
        activation_peak=activation_peak,
        graphs=graphs,
        lora=lora,
        draft=draft,
        encoder=encoder,
        kv_cache=kv_cache,
        kv_block_bytes=kv.block_bytes,
        kv_blocks=kv.blocks,
        kv_tokens=kv.tokens,
        max_model_len=kv.max_model_len,
        concurrent_at_max_len=kv.concurrent_at_max_len,
    )
