"""The runner: carries out step plans with torch, on the GPU where there is one, else on the CPU.

Rows are stable and live on the device (:mod:`blade_llm.runner.tables`), so a step sends only index vectors, and a token
drawn in one step feeds the next without a visit to the host.
"""

from __future__ import annotations

import logging
import time
from typing import cast

import torch

from blade_llm.config import EngineConfig
from blade_llm.layers.step import KVCache
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import resolve_dtype
from blade_llm.models.llama import Llama
from blade_llm.models.memory import BLOCK_SIZE, KvPlan, activation_bytes, default_kv_cache_bytes
from blade_llm.models.registry import load_model
from blade_llm.runner.device import TORCH_DTYPES, choose_device
from blade_llm.runner.inputs import gather_inputs
from blade_llm.runner.kv_cache import allocate_kv_cache
from blade_llm.runner.memory_plan import memory_plan, plan_kv_cache
from blade_llm.runner.pending import LaunchedForward, LaunchedStep
from blade_llm.runner.probe import blocks_used, decode_plan, free_plan, prefill_plan
from blade_llm.runner.tables import RowTables
from blade_llm.runner.threads import SHORT_PROBE_SECONDS, requested_threads, usable_cores
from blade_llm.sampling.sampler import Sampler
from blade_llm.scheduling.plan import PendingForward, StepPlan

logger = logging.getLogger(__name__)

GPU_MEMORY_SHARE = 0.9
"""Share of the GPU's memory for weights, activations and KV cache together."""


class TorchRunner:
    """One model on one device; implements :class:`blade_llm.scheduling.plan.Runner`.

    Attributes: ``num_blocks``, ``max_model_len``, ``memory_plan``, and ``timings``, seconds by phase of the start.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig) -> None:
        """Load the weights and allocate the KV cache.

        Raises :class:`~blade_llm.models.errors.ModelFilesError`,
        :class:`~blade_llm.models.errors.NotEnoughMemoryError`, and ``ValueError`` for a ``max_model_len`` beyond the
        model's own.
        """
        self.config = config
        self.model_config = model_config
        self.timings: dict[str, float] = {}
        self.device = choose_device()
        self.dtype_name = resolve_dtype(config.dtype, model_config.dtype, on_gpu=self.device.type != "cpu")
        self.dtype = TORCH_DTYPES[self.dtype_name]
        if self.device.type == "cpu":
            torch.set_num_threads(requested_threads(config.num_threads) or usable_cores())
        with torch.inference_mode():
            kv = self._start_on_cpu() if self.device.type == "cpu" else self._start_on_gpu()
            self._allocate(kv)
        self.num_blocks = kv.blocks
        self.max_model_len = kv.max_model_len
        self.memory_plan = memory_plan(kv, weights=self.model.nbytes, activation_peak=self._activation_peak)

    @torch.inference_mode()
    def launch_forward(self, plan: StepPlan) -> LaunchedForward:
        """Apply the plan to the tables, gather the inputs and launch the forward pass."""
        self._tables.apply(plan)
        inputs = gather_inputs(plan, self._tables, self._kv_cache, self.model_config.num_heads)
        hidden = self.model(inputs.token_ids, inputs.metadata, inputs.selected)
        return LaunchedForward(inputs.sampled, self.model.logits(hidden) if inputs.sampled.rows else None)

    @torch.inference_mode()
    def launch_sampling(self, forward: PendingForward) -> LaunchedStep:
        """Launch the draw, which writes each token into its row's table at its position."""
        launched = cast(LaunchedForward, forward)
        if launched.logits is None:
            return LaunchedStep(None)
        sampled = launched.sampled
        drawn = self._sampler.draw(launched.logits, sampled)
        self._tables.token_ids[sampled.row_index, sampled.position_index] = drawn.tokens.to(torch.int32)
        return LaunchedStep(drawn)

    def warm_up(self) -> None:
        """Run a prefill and a decode, so that the first request does not pay for what torch sets up on first use."""
        start = time.perf_counter()
        lengths = [min(BLOCK_SIZE, self.max_model_len - 1)]
        self._run_probe(lengths)
        if self.device.type == "cpu" and requested_threads(self.config.num_threads) is None:
            self._settle_threads(lengths)
        self.timings["warm-up"] = time.perf_counter() - start

    def _settle_threads(self, lengths: list[int]) -> None:
        """Stay with one thread where the model is too small to share."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        start = time.perf_counter()
        self._run_probe(lengths)
        if time.perf_counter() - start > SHORT_PROBE_SECONDS:
            torch.set_num_threads(threads)

    def _start_on_cpu(self) -> KvPlan:
        """The plan comes first: a cache that does not fit is known before the weights are read."""
        config, model_config = self.config, self.model_config
        available = config.kv_cache_bytes if config.kv_cache_bytes is not None else default_kv_cache_bytes()
        kv = plan_kv_cache(config, model_config, self.dtype_name, available)
        self.model = self._load(kv.max_model_len)
        self._activation_peak = activation_bytes(
            model_config, self.dtype_name, max_batch_tokens=config.max_batch_tokens, max_num_seqs=config.max_num_seqs
        )
        return kv

    def _start_on_gpu(self) -> KvPlan:
        """The cache gets what weights and a full step leave."""
        config = self.config
        length = min(config.max_model_len or self.model_config.max_position_embeddings, config.max_batch_tokens)
        self.model = self._load(config.max_model_len or self.model_config.max_position_embeddings)
        self._activation_peak = self._measure_step(length)
        free, total = torch.cuda.mem_get_info(self.device)
        available = int(free - (1.0 - GPU_MEMORY_SHARE) * total) - self._activation_peak
        if config.kv_cache_bytes is not None:
            available = config.kv_cache_bytes
        return plan_kv_cache(config, self.model_config, self.dtype_name, max(0, available))

    def _load(self, max_positions: int) -> Llama:
        start = time.perf_counter()
        model = load_model(
            self.config.model_dir,
            self.model_config,
            load_format=self.config.load_format,
            max_positions=max_positions,
            device=self.device,
            dtype=self.dtype,
        )
        self.timings["weights"] = time.perf_counter() - start
        return model

    def _allocate(self, kv: KvPlan) -> None:
        self._kv_cache: KVCache = allocate_kv_cache(self.model_config, kv.blocks, BLOCK_SIZE, self.device, self.dtype)
        self._tables = RowTables(
            self.config.max_num_seqs, kv.max_model_len, kv.blocks_of(kv.max_model_len), self.device
        )
        self._sampler = Sampler(self._tables.sampling, self._tables.token_ids)

    def _measure_step(self, length: int) -> int:
        """Bytes that a full step allocates beyond what lasts, measured on a cache of its own that is dropped again."""
        full, rest = divmod(self.config.max_batch_tokens, length)
        lengths = ([length - 1] * full + [rest] * bool(rest))[: self.config.max_num_seqs]
        self._allocate(KvPlan(block_size=BLOCK_SIZE, block_bytes=0, blocks=blocks_used(lengths), max_model_len=length))
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        self._run_probe(lengths)
        peak = torch.cuda.max_memory_allocated(self.device) - before
        del self._kv_cache, self._tables, self._sampler
        torch.cuda.empty_cache()
        return peak

    def _run_probe(self, lengths: list[int]) -> None:
        for plan in (prefill_plan(lengths), decode_plan(lengths)):
            self.launch_sampling(self.launch_forward(plan)).result()
        self._tables.apply(free_plan(lengths))
