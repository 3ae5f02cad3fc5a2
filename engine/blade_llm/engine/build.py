"""Put the real engine together: model, torch runner, scheduler. The only part of this package that needs torch."""

from __future__ import annotations

from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.models.config import load_model_config
from blade_llm.runner import build_runner


def build_core(config: EngineConfig) -> EngineCore:
    """Load the model of ``config`` and return an engine core that is ready to step.

    Raises :class:`~blade_llm.models.errors.ModelFilesError`, :class:`~blade_llm.models.errors.NotEnoughMemoryError`.
    """
    model_config = load_model_config(config.model_dir)
    runner = build_runner(config, model_config)
    info = EngineInfo(
        model=config.served_names[0],
        max_model_len=runner.max_model_len,
        device=runner.description,
        dtype=runner.dtype_name,
        vocab_size=model_config.vocab_size,
        revision=config.revision,
        memory=runner.memory_plan,
        timings=runner.timings,
    )
    eos_token_ids = dict.fromkeys((*model_config.eos_token_ids, *config.extra_eos_token_ids))
    return EngineCore.from_config(config, runner, info, num_blocks=runner.num_blocks, eos_token_ids=eos_token_ids)
