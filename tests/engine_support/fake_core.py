"""Engine cores around the fake runner."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from engine_support.fake_runner import FakeRunner
from engine_support.sched_invariants import check_invariants

from blade_llm.cache.manager import KVCacheManager
from blade_llm.config import EngineConfig
from blade_llm.engine.core import EngineCore, EngineInfo
from blade_llm.engine.messages import RequestOutput
from blade_llm.models.memory import BLOCK_SIZE
from blade_llm.scheduling.grammar import Grammars
from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.plan import Runner
from blade_llm.scheduling.scheduler import Scheduler

EOS = 2
"""End-of-sequence id of the fake model."""


def make_core(
    runner: FakeRunner,
    *,
    max_batch_tokens: int = 128,
    enable_prompt_cache: bool = True,
    clock: Callable[[], float] = monotonic,
    overlap: bool = True,
    grammars: Grammars | None = None,
) -> EngineCore:
    """A core whose limits are those of ``runner``."""
    runner.max_batch_tokens = max_batch_tokens
    return core_of(
        runner,
        num_blocks=runner.num_blocks,
        max_num_seqs=runner.max_num_seqs,
        max_model_len=runner.max_model_len,
        max_batch_tokens=max_batch_tokens,
        enable_prompt_cache=enable_prompt_cache,
        clock=clock,
        overlap=overlap,
        grammars=grammars,
        info=_info(runner, "fake"),
    )


def core_of(
    runner: Runner,
    *,
    num_blocks: int,
    enable_prompt_cache: bool = True,
    clock: Callable[[], float] = monotonic,
    overlap: bool = True,
    grammars: Grammars | None = None,
    info: EngineInfo | None = None,
    max_model_len: int,
    max_batch_tokens: int = 128,
    eos_token_ids: tuple[int, ...] = (EOS,),
    **limits: int,
) -> EngineCore:
    """A core around any runner; ``limits`` are those of the scheduler."""
    config = SchedulerConfig(
        max_model_len=max_model_len, max_batch_tokens=max_batch_tokens, eos_token_ids=eos_token_ids, **limits
    )
    cache = KVCacheManager(num_blocks, BLOCK_SIZE, enable_prompt_cache=enable_prompt_cache)
    info = info or EngineInfo(model="fake", max_model_len=max_model_len, device="cpu", dtype="float32")
    return EngineCore(Scheduler(config, cache), runner, info, clock, overlap=overlap, grammars=grammars)


def build_core(config: EngineConfig) -> EngineCore:
    """What an engine process builds in tests (``engine_support.fake_core:build_core``)."""
    runner = FakeRunner(
        num_blocks=config.max_kv_blocks or 1024,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len or 2048,
        max_batch_tokens=config.max_batch_tokens,
    )
    info = _info(runner, config.served_names[0])
    return EngineCore.from_config(config, runner, info, num_blocks=runner.num_blocks, eos_token_ids=(EOS,))


def _info(runner: FakeRunner, model: str) -> EngineInfo:
    return EngineInfo(
        model=model,
        max_model_len=runner.max_model_len,
        device="cpu",
        dtype="float32",
        vocab_size=runner.vocab_size,
        memory=runner.memory_plan,
        timings=runner.timings,
    )


def run(core: EngineCore, outputs: dict[str, list[RequestOutput]] | None = None) -> dict[str, list[RequestOutput]]:
    """Step until nothing is left to do, adding to ``outputs`` by request; every invariant holds after each step, and
    all blocks are free in the end."""
    outputs = {} if outputs is None else outputs
    for _ in range(3000):
        if not core.has_work:
            assert core.scheduler.cache.num_free == core.scheduler.cache.num_blocks
            return outputs
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
        check_invariants(core.scheduler)
    raise AssertionError("it does not end")
