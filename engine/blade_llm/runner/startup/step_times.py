"""Measures at the start what steps of decodes take by the tokens that they compute, for speculative decoding."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from blade_llm.cache.sizing import BLOCK_SIZE
from blade_llm.config import SpeculativeConfig
from blade_llm.decoding.step_seconds import StepSeconds
from blade_llm.parallel.group import RankGroup
from blade_llm.parallel.link import StageLink, least_of_ranks
from blade_llm.runner.startup.dummy_batch import VARIETY, DummyBatch
from blade_llm.runner.startup.startable import StartableDraft, StartableRunner
from blade_llm.scheduling.drafting import most_sampled
from blade_llm.scheduling.plan import DraftChunk, DraftTree, ScheduledChunk, StepPlan, TokenUpdate

_SIZES: Final = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 512)
_ROUNDS: Final = 3
_MOST_ROUNDS: Final = 30
_ENOUGH_SECONDS: Final = 0.5
"""Short steps are measured more often, as others disturb them more."""
_OVERLAPPED: Final = 10
"""Steps that are launched one after the other."""
_PROMPT: Final = 8
"""Tokens."""


def measure_steps(
    runner: StartableRunner,
    config: SpeculativeConfig,
    group: RankGroup | None = None,
    link: StageLink | None = None,
) -> StepSeconds:
    """Seconds of steps of up to as many tokens as a batch with draft tokens has; of a pipeline's first stage those
    until the last one's tokens are there. ``group``, ``link``: to the ranks that run them."""
    slots = _slots(runner, config)
    most = min(slots * (1 + config.most_draft_tokens), most_sampled(runner.config.max_num_seqs))
    sizes = sorted({size for size in _SIZES if size < most} | {most})
    batch = DummyBatch((VARIETY[0],))  # greedy: what else sampling does is small beside the forward pass of real models
    _run(runner, batch.step([_PROMPT + config.most_draft_tokens] * slots))
    plans = {size: partial(_run, runner, _decodes(size, config)) for size in sizes}
    seconds = _fastest(plans, group, link)
    draft = None
    if runner.draft is not None:
        sizes = sorted({size for size in _SIZES if size < slots} | {slots})
        draft = _fastest({size: partial(_draft, runner.draft, size, config.gamma) for size in sizes}, group)
    plain = None if runner.device.type == "cpu" else min(_overlapped(runner, config) for _ in range(_ROUNDS))
    for slot in batch.slots:
        runner.tables.free(slot)
    return StepSeconds(seconds, draft, plain)


def _fastest(
    runs: Mapping[int, Callable[[], float]], group: RankGroup | None, link: StageLink | None = None
) -> dict[int, float]:
    """The shortest time of each of ``runs``, of a few rounds over all: what disturbs one disturbs its neighbours. All
    ranks make as many rounds."""
    shortest = {size: run() for size, run in runs.items()}
    started = time.perf_counter()
    for number in range(_MOST_ROUNDS - 1):
        going_on = number < _ROUNDS - 1 or time.perf_counter() - started <= _ENOUGH_SECONDS
        if not least_of_ranks(group, link, going_on):
            break
        for size, run in runs.items():
            shortest[size] = min(shortest[size], run())
    return shortest


def _overlapped(runner: StartableRunner, config: SpeculativeConfig) -> float:
    """Seconds of a decode where the next is launched before the last is delivered."""
    plan = _decodes(1, config)
    start = time.perf_counter()
    launched = [runner.launch_sampling(runner.launch_forward(plan)) for _ in range(_OVERLAPPED)]
    launched[-1].result()
    return (time.perf_counter() - start) / _OVERLAPPED


def _slots(runner: StartableRunner, config: SpeculativeConfig) -> int:
    """Slots that all have room for a prompt and draft tokens."""
    tokens = _PROMPT + config.most_draft_tokens
    within_budget = runner.config.max_batch_tokens // tokens
    within_cache = runner.num_blocks // (-(-tokens // BLOCK_SIZE) + 1)
    return max(1, min(runner.config.max_num_seqs, within_budget, within_cache))


def _decodes(tokens: int, config: SpeculativeConfig) -> StepPlan:
    """A step of so many tokens: decodes with as many draft tokens as there can be, in the form that these have."""
    chunks: list[ScheduledChunk] = []
    updates: list[TokenUpdate] = []
    while tokens > 0:
        count = min(tokens, 1 + config.most_draft_tokens)
        slot, drafts = len(chunks), count - 1
        tree = DraftTree(list(range(-1, drafts - 1)), drafts, []) if drafts and config.branch_depth else None
        chunks.append(ScheduledChunk(slot, _PROMPT - 1, count, True, f"dummy-{slot}", drafts, tree))
        if tree is not None:
            updates.append(TokenUpdate(slot, _PROMPT, [0] * drafts))
        tokens -= count
    return StepPlan(0, sorted(chunks, key=_length), token_updates=updates)


def _draft(draft: StartableDraft, decodes: int, gamma: int) -> float:
    """Seconds of one token of each of so many decodes."""
    chunks = [ScheduledChunk(slot, _PROMPT - 1, 1 + gamma, True, f"dummy-{slot}", gamma) for slot in range(decodes)]
    last = _PROMPT - 1 - draft.shift
    plan = StepPlan(0, chunks, draft_chunks=[DraftChunk(slot, last, 1) for slot in range(decodes)])
    start = time.perf_counter()
    bool(draft.launch(plan))  # waits for the device
    return (time.perf_counter() - start) / gamma


def _length(chunk: ScheduledChunk) -> int:
    return chunk.count


def _run(runner: StartableRunner, plan: StepPlan) -> float:
    start = time.perf_counter()
    runner.launch_sampling(runner.launch_forward(plan)).result()
    return time.perf_counter() - start
