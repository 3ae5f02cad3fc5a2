"""Measures at the start what steps of decodes take by the tokens that they compute, for speculative decoding."""

from __future__ import annotations

import time
from typing import Final

from blade_llm.config import SpeculativeConfig
from blade_llm.decoding.step_seconds import StepSeconds
from blade_llm.runner.startup.dummy_batch import DummyBatch
from blade_llm.runner.startup.startable import StartableDraft, StartableRunner
from blade_llm.scheduling.drafting import most_sampled
from blade_llm.scheduling.plan import DraftChunk, ScheduledChunk, StepPlan

_SIZES: Final = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 512)
_REPEATS: Final = 3
_PROMPT: Final = 8
"""Tokens; with the draft tokens it fits into two blocks."""


def measure_steps(runner: StartableRunner, config: SpeculativeConfig) -> StepSeconds:
    """Seconds of steps of up to as many tokens as a batch with draft tokens has."""
    slots = _slots(runner, config)
    most = min(slots * (1 + config.gamma), most_sampled(runner.config.max_num_seqs))
    sizes = sorted({size for size in _SIZES if size < most} | {most})
    batch = DummyBatch()
    _run(runner, batch.step([_PROMPT + config.gamma] * slots))
    seconds = {}
    for size in sizes:
        plan = _decodes(size, config.gamma)
        seconds[size] = min(_run(runner, plan) for _ in range(_REPEATS))
    draft = None
    if runner.draft is not None:
        sizes = sorted({size for size in _SIZES if size < slots} | {slots})
        draft = {size: min(_draft(runner.draft, size, config.gamma) for _ in range(_REPEATS)) for size in sizes}
    for slot in batch.slots:
        runner.tables.free(slot)
    return StepSeconds(seconds, draft)


def _slots(runner: StartableRunner, config: SpeculativeConfig) -> int:
    """Slots that all have room for a prompt and draft tokens: two blocks each."""
    within_budget = runner.config.max_batch_tokens // (_PROMPT + config.gamma)
    return max(1, min(runner.config.max_num_seqs, within_budget, runner.num_blocks // 2))


def _decodes(tokens: int, gamma: int) -> StepPlan:
    """A step of so many tokens: decodes with as many draft tokens as there can be."""
    chunks: list[ScheduledChunk] = []
    while tokens > 0:
        count = min(tokens, 1 + gamma)
        slot = len(chunks)
        chunks.append(ScheduledChunk(slot, _PROMPT - 1, count, True, f"dummy-{slot}", count - 1))
        tokens -= count
    return StepPlan(0, sorted(chunks, key=_length))


def _draft(draft: StartableDraft, decodes: int, gamma: int) -> float:
    """Seconds of one token of each of so many decodes."""
    chunks = [ScheduledChunk(slot, _PROMPT - 1, 1 + gamma, True, f"dummy-{slot}", gamma) for slot in range(decodes)]
    plan = StepPlan(0, chunks, draft_chunks=[DraftChunk(slot, _PROMPT - 1, 1) for slot in range(decodes)])
    start = time.perf_counter()
    bool(draft.launch(plan))  # waits for the device
    return (time.perf_counter() - start) / gamma


def _length(chunk: ScheduledChunk) -> int:
    return chunk.count


def _run(runner: StartableRunner, plan: StepPlan) -> float:
    start = time.perf_counter()
    runner.launch_sampling(runner.launch_forward(plan)).result()
    return time.perf_counter() - start
