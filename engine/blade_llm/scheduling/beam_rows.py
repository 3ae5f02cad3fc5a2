"""The rows and blocks of a beam search.

The search is one request in the scheduler's queues, with a row for each beam. They are reserved together when it
enters, so that two searches cannot keep each other from growing. All beams are computed in one step, whose results must
be there before the next one: the search may choose any of their continuations. A beam's first continuation keeps its
row; others enter a row anew, sharing the full blocks, with a copy of the one that is filled in part. A preempted search
starts again from its prompt, as it finds the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from blade_llm.cache.manager import KVCacheManager
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.scheduling.beams import BeamSearch, Branch, nodes_of
from blade_llm.scheduling.output import RequestOutput
from blade_llm.scheduling.plan import BlockCopy, BlockUpdate, NewRow, ScheduledRow, TokenUpdate
from blade_llm.scheduling.request import NO_ROW, Request
from blade_llm.scheduling.step import Step


@dataclass(slots=True)
class Lane:
    """One beam's row."""

    row: int
    blocks: list[int]
    drawn: int = -1
    """The token that the runner has put at the row's end."""


@dataclass(slots=True)
class BeamRows:
    """A search that runs, or waits."""

    search: BeamSearch
    answer_ids: list[str | None]
    """Where the best answer goes, the second best, …; None: nobody wants it any more."""
    lanes: list[Lane] = field(default_factory=list)
    """The rows of the beams of the last step; none while the prompt is computed."""
    spare_rows: list[int] = field(default_factory=list)
    """Reserved, and empty."""
    branches: list[Branch] = field(default_factory=list)
    """The beams of the next step; none while their tokens are awaited."""
    _offers: list[TokenLogprobs] = field(default_factory=list)
    _drawn: list[int] = field(default_factory=list)

    @property
    def held(self) -> list[int]:
        """Blocks of all beams, as often as they are held."""
        return [block for lane in self.lanes for block in lane.blocks]

    def unwanted(self, request_id: str) -> bool:
        """Nobody wants this answer any more. True: nor any other."""
        self.answer_ids[self.answer_ids.index(request_id)] = None
        return not any(self.answer_ids)

    def restart(self) -> None:
        """Rows and blocks are gone."""
        self.search.restart()
        self.lanes, self.spare_rows, self.branches = [], [], []
        self._offers, self._drawn = [], []

    def collect(self, token: int, logprobs: TokenLogprobs) -> None:
        """What the next of the rows in flight brought."""
        self._offers.append(logprobs)
        self._drawn.append(token)

    def advance(self, request: Request) -> bool:
        """All rows have brought theirs. False: the search is over."""
        if not self.lanes:
            self.lanes = [Lane(request.row, request.block_table)]
            request.block_table = []
        for lane, token in zip(self.lanes, self._drawn, strict=True):
            lane.drawn = token
        self.branches = self.search.advance(self._offers)
        self._offers, self._drawn = [], []
        return bool(self.branches)

    def schedule(
        self,
        step: Step,
        request: Request,
        cache: KVCacheManager,
        take: Callable[[Request], int | None],
        freed_rows: list[int],
    ) -> bool:
        """Compute the next beams in ``step``. ``take`` gets a block, or None when the request had to go itself: then
        False."""
        position = request.num_prompt_tokens + self.search.length - 1
        full, partial = divmod(position, cache.block_size)
        parents = self.lanes
        self._inherit(cache, full, freed_rows)
        for lane in self.lanes:
            if len(lane.blocks) == full:
                block = take(request)
                if block is None:
                    return False
                lane.blocks.append(block)
        for lane, branch in zip(self.lanes, self.branches, strict=True):
            token = branch.node.token
            if lane.row == NO_ROW:
                lane.row = self.spare_rows.pop()
                tokens = [node.token for node in nodes_of(branch.node)]
                step.new_rows.append(self._new_row(lane.row, request, tokens))
                step.block_updates.append(BlockUpdate(lane.row, 0, list(lane.blocks)))
                if partial:
                    step.block_copies.append(BlockCopy(parents[branch.parent].blocks[full], lane.blocks[full]))
            else:
                if not partial:
                    step.block_updates.append(BlockUpdate(lane.row, full, lane.blocks[full:]))
                if lane.drawn != token:
                    step.token_updates.append(TokenUpdate(lane.row, position, [token]))
            step.rows.append(ScheduledRow(lane.row, position, 1, True, request.request_id))
            step.requests.append(request)
        request.num_in_flight += len(self.lanes)
        request.steps_in_flight += len(self.lanes)
        self.branches = []
        return True

    def answers(self, request: Request) -> list[RequestOutput]:
        """The outputs of a search that is over."""
        outputs = []
        for index, request_id in enumerate(self.answer_ids):
            if request_id is None:
                continue
            if index >= len(self.search.hypotheses):
                error = f"the beams found {index} answers and no more; lower n"
                outputs.append(RequestOutput(request_id=request_id, finish_reason="abort", error=error))
                continue
            hypothesis = self.search.hypotheses[index]
            tokens, logprobs = self.search.answer(hypothesis)
            outputs.append(
                RequestOutput(
                    request_id=request_id,
                    token_ids=tokens,
                    logprobs=logprobs,
                    finish_reason=hypothesis.reason,
                    stop_token_id=hypothesis.stop_token_id,
                    cached_tokens=None if index else request.cached_tokens,
                    prompt_logprobs=None if index else request.prompt_logprobs,
                )
            )
        return outputs

    def _inherit(self, cache: KVCacheManager, full: int, freed_rows: list[int]) -> None:
        """Give the blocks, and where it can be the rows, of the last beams to the next ones."""
        parents, heirs = self.lanes, set[int]()
        self.lanes = []
        for branch in self.branches:
            lane = parents[branch.parent]
            if branch.parent in heirs:
                lane = Lane(NO_ROW, lane.blocks[:full])
                cache.share(lane.blocks)
            heirs.add(branch.parent)
            self.lanes.append(lane)
        for index, lane in enumerate(parents):
            if index not in heirs:
                cache.release(lane.blocks)
                freed_rows.append(lane.row)
                self.spare_rows.append(lane.row)

    def _new_row(self, row: int, request: Request, tokens: list[int]) -> NewRow:
        return NewRow(
            row=row,
            request_id=request.request_id,
            token_ids=request.prompt_token_ids + tokens,
            num_prompt_tokens=request.num_prompt_tokens,
            sampling=self.search.row_sampling,
            adapter_slot=request.adapter_slot,
            embeddings=request.embeddings,
        )
