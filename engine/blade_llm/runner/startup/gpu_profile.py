"""Measures what a GPU's memory is needed for besides the KV cache: weights, a full step, CUDA graphs.

Nothing is estimated from shapes: a full step with the heaviest sampling runs on a cache and tables that are dropped
again, and a few graphs, the largest and the smallest, are captured for their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from blade_llm.cache.sizing import BLOCK_SIZE, KVCachePlan, kv_block_bytes
from blade_llm.config import EngineConfig
from blade_llm.models.errors import NotEnoughMemoryError
from blade_llm.runner.graphs.decode import SizedGraphs
from blade_llm.runner.startup.dummy_batch import HEAVIEST, STEPS, DummyBatch, blocks_for
from blade_llm.runner.startup.memory_plan import GpuMemory
from blade_llm.runner.startup.startable import StartableRunner
from blade_llm.runner.startup.warm_up import run_dummy_batch, warm_up

_SAMPLED_GRAPHS: Final = 4


def full_steps(max_batch_tokens: int, max_num_seqs: int, max_model_len: int) -> list[list[int]]:
    """Prompt lengths of the steps that need the most: the whole budget in as many sequences as there may be (all of
    which sample), and in as few."""
    longest = max(1, min(max_model_len - STEPS, max_batch_tokens))
    many = min(max_num_seqs, max_batch_tokens)
    few, rest = divmod(max_batch_tokens, longest)
    return [
        [min(longest, max_batch_tokens // many)] * many,
        ([longest] * few + [rest] * bool(rest))[:max_num_seqs],
    ]


def profile_gpu(runner: StartableRunner, free_at_start: int, max_model_len: int) -> GpuMemory:
    """Run full steps and capture a few graphs on ``runner``, whose weights are loaded and nothing else.

    ``free_at_start``: free bytes before the weights came. Raises :class:`NotEnoughMemoryError` when a full step does
    not fit.
    """
    config, device = runner.config, runner.device
    steps = full_steps(config.max_batch_tokens, config.max_num_seqs, max_model_len)
    blocks = max(blocks_for(lengths) for lengths in steps)
    dummy_kv = KVCachePlan(block_size=BLOCK_SIZE, block_bytes=0, blocks=blocks, max_model_len=max_model_len)
    try:
        runner.attach(dummy_kv)
        warm_up(runner, every_shape=True)
        _release(device)
        torch.cuda.reset_peak_memory_stats(device)
        reserved = torch.cuda.memory_reserved(device)
        for lengths in steps:
            run_dummy_batch(runner, DummyBatch([HEAVIEST], generates=runner.model_config.decoder.head), [lengths])
        peak = torch.cuda.max_memory_reserved(device) - reserved
        _release(device)
        free, total = torch.cuda.mem_get_info(device)
        graphs = sum(_estimate(each, device) for each in runner.all_graphs)
    except torch.OutOfMemoryError as error:
        raise NotEnoughMemoryError(
            f"a step of {config.max_batch_tokens} tokens and {config.max_num_seqs} sequences does not fit into the "
            f"GPU beside the weights; lower --ragged_flash_max_batch_tokens to {max(1, config.max_batch_tokens // 2)} "
            f"or --max_num_seqs to {max(1, config.max_num_seqs // 2)} ({error})"
        ) from error
    dummy_bytes = (blocks + 1) * kv_block_bytes(runner.model_config, runner.dtype_name)
    runner.detach()
    _release(device)
    return GpuMemory(
        total=total,
        free=free + dummy_bytes,
        lasting=max(0, free_at_start - free - dummy_bytes),
        activation_peak=peak,
        graphs=graphs,
        share=config.max_gpu_memory_utilization,
    )


def capture_bytes(graphs: SizedGraphs, sizes: Sequence[int], device: torch.device) -> int:
    """Capture ``sizes`` and return the bytes they took; 0 where there is no GPU."""
    if device.type != "cuda":
        graphs.capture(sizes)
        return 0
    _release(device)
    before, _ = torch.cuda.mem_get_info(device)
    graphs.capture(sizes)
    _release(device)
    after, _ = torch.cuda.mem_get_info(device)
    return max(0, before - after)


def capture_all(all_graphs: Sequence[SizedGraphs], device: torch.device) -> int:
    """Capture every graph, in this order, and return the bytes they took. Raises :class:`NotEnoughMemoryError`."""
    try:
        return sum(capture_bytes(graphs, graphs.sizes, device) for graphs in all_graphs)
    except torch.OutOfMemoryError as error:
        sizes = " and ".join(", ".join(map(str, graphs.sizes)) for graphs in reversed(all_graphs))
        raise NotEnoughMemoryError(
            f"no memory is left for CUDA graphs of batch sizes (and tokens of steps with prefill) {sizes}; lower "
            f"--cuda_graph_max_batch_size, --cuda_graph_max_tokens, --kv_cache_bytes or "
            f"--max_gpu_memory_utilization, or give --disable_cuda_graph ({error})"
        ) from error


def out_of_memory(what: str, config: EngineConfig, error: Exception) -> NotEnoughMemoryError:
    """The error for what ran out of a GPU's memory outside of profiling, with advice."""
    share = config.max_gpu_memory_utilization
    return NotEnoughMemoryError(
        f"{what} ran out of GPU memory; lower --max_gpu_memory_utilization to {max(0.05, share - 0.05):.2f}, or "
        f"--ragged_flash_max_batch_tokens to {max(1, config.max_batch_tokens // 2)} ({error})"
    )


def _estimate(graphs: SizedGraphs, device: torch.device) -> int:
    """Bytes of all graphs of a kind: the largest brings the memory pool, each further one costs about what the smallest
    do.

    Several of these, because the driver takes memory in pieces that may hold more than one graph.
    """
    further = graphs.sizes[:-1]
    sample = further[:_SAMPLED_GRAPHS]
    total = capture_bytes(graphs, graphs.sizes[-1:], device)
    if sample:
        total += -(-capture_bytes(graphs, sample, device) * len(further) // len(sample))
    return total


def _release(device: torch.device) -> None:
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
