"""Plans with made-up requests, to warm up before the first real one and to measure a full step's memory."""

from __future__ import annotations

from blade_llm.models.memory import BLOCK_SIZE
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.plan import BlockUpdate, NewRow, ScheduledRow, StepPlan

_SAMPLED = SamplingParams(temperature=1.0, top_p=0.9, top_k=20, seed=0, max_tokens=2)


def prefill_plan(lengths: list[int]) -> StepPlan:
    """One step that prefills a request of each length in rows 0, 1, ... and in blocks 0, 1, ..., and draws for each."""
    new_rows, updates, rows = [], [], []
    block = 0
    for row, length in enumerate(lengths):
        request_id = f"probe-{row}"
        blocks = -(-(length + 1) // BLOCK_SIZE)
        new_rows.append(NewRow(row, request_id, [0] * length, length, _SAMPLED))
        updates.append(BlockUpdate(row, 0, list(range(block, block + blocks))))
        rows.append(ScheduledRow(row, 0, length, sample=True, request_id=request_id))
        block += blocks
    return StepPlan(step=0, rows=rows, new_rows=new_rows, block_updates=updates)


def decode_plan(lengths: list[int]) -> StepPlan:
    """The step after :func:`prefill_plan`."""
    rows = [ScheduledRow(row, length, 1, True, f"probe-{row}") for row, length in enumerate(lengths)]
    return StepPlan(step=1, rows=rows)


def blocks_used(lengths: list[int]) -> int:
    """Blocks that these plans use."""
    return sum(-(-(length + 1) // BLOCK_SIZE) for length in lengths)


def free_plan(lengths: list[int]) -> StepPlan:
    """Frees the rows; nothing to compute."""
    return StepPlan(step=2, rows=[], freed_rows=list(range(len(lengths))))
