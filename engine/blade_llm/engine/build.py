"""Put the real engine together: model, torch runner, scheduler. The only part of this package that needs torch."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import cast

from blade_llm.config import EngineConfig
from blade_llm.engine.adapters import LoadedAdapter
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.ranks.adapter_reads import Place
from blade_llm.engine.ranks.adapters import AdapterRanks
from blade_llm.engine.ranks.build import build_rank, build_with_ranks
from blade_llm.models.config import ModelConfig
from blade_llm.models.dtypes import DTYPE_BYTES, DTypeName
from blade_llm.models.implementation import log_implementation, read_model_config
from blade_llm.parallel.layout import RankLayout
from blade_llm.runner import preload
from blade_llm.runner.gpu_memory import GpuMemoryReader
from blade_llm.runner.vision.memory import run_tokens, tower_of
from blade_llm.sampling.guided.grammars import CachingGrammarCompiler
from blade_llm.sampling.guided.vocabulary import load_vocabulary
from blade_llm.scheduling.budget.prefill import CPU_MIN_CHUNK, GPU_MIN_CHUNK
from blade_llm.scheduling.images.limits import EncoderLimits

__all__ = ["build_core", "build_rank", "preload"]

logger = logging.getLogger(__name__)


def build_core(config: EngineConfig) -> EngineCore:
    """Load the model of ``config`` and return an engine core that is ready to step.

    Raises :class:`~blade_llm.models.errors.ModelFilesError`, :class:`~blade_llm.models.errors.NotEnoughMemoryError`.
    """
    model_config = read_model_config(config.model_dir, config.model_impl, config.task)
    log_implementation(model_config)
    runner, ranks = build_with_ranks(config, model_config)
    info = EngineInfo(
        model=config.served_names[0],
        max_model_len=runner.max_model_len,
        device=runner.description,
        dtype=runner.dtype_name,
        vocab_size=model_config.vocab_size,
        hidden_size=model_config.hidden_size,
        computes_on_host=runner.device.type == "cpu",
        revision=config.revision,
        memory=runner.memory_plan,
        timings=runner.timings,
        gpus=GpuMemoryReader(runner.device),
    )
    eos_token_ids = tuple(dict.fromkeys((*model_config.eos_token_ids, *config.extra_eos_token_ids)))
    core = EngineCore.from_config(
        config,
        runner,
        info,
        num_blocks=runner.num_blocks,
        eos_token_ids=eos_token_ids,
        grammars=_grammars(config, model_config.vocab_size, eos_token_ids, runner.timings),
        min_prefill_tokens=CPU_MIN_CHUNK if runner.device.type == "cpu" else GPU_MIN_CHUNK,
        graph_token_sizes=() if runner.mixed_graphs is None else runner.mixed_graphs.sizes,
        whole_prompts=model_config.decoder.bidirectional,
        step_seconds=runner.step_seconds,
        draft_positions=0 if runner.draft is None else runner.draft.max_positions,
        images=_encoder_limits(config, model_config, runner.dtype_name, runner.max_model_len),
    )
    core.ranks = ranks
    if runner.adapters is not None:
        loaded = cast("dict[int, LoadedAdapter]", runner.adapters.loaded)
        layout = RankLayout.of(config)
        fetching = [rank for rank in range(layout.size) if Place.of(layout, rank).fetches]
        others = None if ranks is None else AdapterRanks(ranks, layout.size, fetching=fetching)
        core.serve_adapters(config, runner.adapters.reader(), loaded, others)
    return core


def _encoder_limits(
    config: EngineConfig, model: ModelConfig, dtype: DTypeName, max_model_len: int
) -> EncoderLimits | None:
    """Bounds of the images that the engine takes; None where it takes none."""
    spec = tower_of(config, model)
    if spec is None:
        return None
    return EncoderLimits(
        spec=spec,
        cache_bytes=config.encoder_cache_bytes,
        element_bytes=DTYPE_BYTES[dtype],
        max_tokens=run_tokens(config, spec, dtype, max_model_len),
    )


def _grammars(
    config: EngineConfig, vocab_size: int, eos_token_ids: tuple[int, ...], timings: dict[str, float]
) -> CachingGrammarCompiler:
    """Guided decoding, which gets ready in a thread; ``enable_json_warmup`` waits for it."""
    folder = config.model_dir if config.tokenizer_dir is None else Path(config.tokenizer_dir)
    grammars = CachingGrammarCompiler(lambda: load_vocabulary(folder, vocab_size, eos_token_ids), vocab_size)
    started = time.perf_counter()
    ready = grammars.warm_up()
    if config.enable_json_warmup:
        if error := ready.exception():
            logger.warning("enable_json_warmup: %s", error)
        timings["grammars"] = time.perf_counter() - started
    return grammars
