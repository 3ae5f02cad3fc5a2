"""A plan in the making, and the counts that the engine tells of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from blade_llm.scheduling.plan import BlockCopy, BlockUpdate, NewRow, ScheduledRow, StepPlan, TokenUpdate
from blade_llm.scheduling.request import Request


class SchedulerStats(NamedTuple):
    """Counts for :class:`blade_protocol.state.EngineState`, whose field names they bear."""

    running: int
    waiting: int
    kv_blocks_total: int
    kv_blocks_free: int
    prompt_tokens_total: int
    cached_tokens_total: int
    generation_tokens_total: int
    preemptions_total: int


@dataclass(slots=True)
class Step:
    """What a step computes, and after its launch what the scheduler's update needs of it."""

    number: int
    tokens_left: int
    rows: list[ScheduledRow] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    """One for each of ``rows``. Not looked up by id later: an id may be used again meanwhile."""
    new_rows: list[NewRow] = field(default_factory=list)
    block_updates: list[BlockUpdate] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)
    token_updates: list[TokenUpdate] = field(default_factory=list)
    num_decodes: int = 0
    prefill_tokens: int = 0

    def plan(self, freed_rows: list[int]) -> StepPlan:
        """What the runner gets."""
        return StepPlan(
            step=self.number,
            rows=self.rows,
            new_rows=self.new_rows,
            block_updates=self.block_updates,
            freed_rows=freed_rows,
            block_copies=self.block_copies,
            token_updates=self.token_updates,
        )

    def order(self) -> None:
        """Put the rows in :attr:`StepPlan.rows`'s order, and keep the one they are in otherwise: a search tells its
        beams by it."""
        longer = [row.count > 1 for row in self.rows]
        order = sorted(range(len(longer)), key=longer.__getitem__)
        self.rows = [self.rows[index] for index in order]
        self.requests = [self.requests[index] for index in order]
