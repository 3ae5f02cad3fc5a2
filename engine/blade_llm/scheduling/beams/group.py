"""The slots and blocks of a beam search.

The search is one request in the scheduler's queues, with a slot for each beam. They are reserved together when it is
admitted, so that two searches cannot keep each other from growing. All beams are computed in one step, whose results
must be there before the next one: the search may choose any of their continuations. A beam's first continuation keeps
its slot; others enter a slot anew, sharing the full blocks, with a copy of the one that is filled in part
(copy-on-write). A preempted search starts again from its prompt, as it finds the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from blade_llm.cache.manager import KVCacheManager
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.scheduling.beams.search import BeamSearch, Branch, nodes_of
from blade_llm.scheduling.output import RequestError, RequestOutput
from blade_llm.scheduling.plan import BlockCopy, BlockUpdate, NewRequest, ScheduledChunk, TokenUpdate
from blade_llm.scheduling.request import NO_SLOT, Request
from blade_llm.scheduling.step import Step


@dataclass(slots=True)
class Beam:
    """The slot and the blocks of one beam."""

    slot: int
    blocks: list[int]
    sampled: int = -1
    """The token that the runner has put at the slot's end."""


@dataclass(slots=True)
class BeamGroup:
    """The beams of one search that runs, or waits."""

    search: BeamSearch
    output_ids: list[str | None]
    """The request ids of the best hypothesis, the second best, …; None: the client has dropped that one."""
    beams: list[Beam] = field(default_factory=list)
    """The beams of the last step; none while the prompt is computed."""
    spare_slots: list[int] = field(default_factory=list)
    """Reserved, and empty."""
    branches: list[Branch] = field(default_factory=list)
    """The beams of the next step; none while their tokens are awaited."""
    _candidates: list[TokenLogprobs] = field(default_factory=list)
    _sampled: list[int] = field(default_factory=list)

    @property
    def held(self) -> list[int]:
        """Blocks of all beams, as often as they are held."""
        return [block for beam in self.beams for block in beam.blocks]

    def drop_output(self, request_id: str) -> bool:
        """Drop an output that its client aborted. True: it was the last one."""
        self.output_ids[self.output_ids.index(request_id)] = None
        return not any(self.output_ids)

    def restart(self) -> None:
        """Forget all beams, whose slots and blocks are gone."""
        self.search.restart()
        self.beams, self.spare_slots, self.branches = [], [], []
        self._candidates, self._sampled = [], []

    def collect(self, token: int, logprobs: TokenLogprobs) -> None:
        """Collect the result of the next of the beams in flight."""
        self._candidates.append(logprobs)
        self._sampled.append(token)

    def advance(self, request: Request) -> bool:
        """Choose the next beams, as the results of all are there. False: the search is over."""
        if not self.beams:
            self.beams = [Beam(request.slot, request.block_table)]
            request.block_table = []
        for beam, token in zip(self.beams, self._sampled, strict=True):
            beam.sampled = token
        self.branches = self.search.advance(self._candidates)
        self._candidates, self._sampled = [], []
        return bool(self.branches)

    def schedule(
        self,
        step: Step,
        request: Request,
        cache: KVCacheManager,
        allocate_block: Callable[[Request], int | None],
        freed_slots: list[int],
    ) -> bool:
        """Compute the next beams in ``step``. ``allocate_block`` returns a block, or None when the request was
        preempted itself: then False."""
        position = request.num_prompt_tokens + self.search.length - 1
        full, partial = divmod(position, cache.block_size)
        parents = self.beams
        self._inherit(cache, full, freed_slots)
        for beam in self.beams:
            if len(beam.blocks) == full:
                block = allocate_block(request)
                if block is None:
                    return False
                beam.blocks.append(block)
        for beam, branch in zip(self.beams, self.branches, strict=True):
            token = branch.node.token
            if beam.slot == NO_SLOT:
                beam.slot = self.spare_slots.pop()
                tokens = [node.token for node in nodes_of(branch.node)]
                step.new_requests.append(self._new_request(beam.slot, request, tokens))
                step.block_updates.append(BlockUpdate(beam.slot, 0, list(beam.blocks)))
                if partial:
                    step.block_copies.append(BlockCopy(parents[branch.parent].blocks[full], beam.blocks[full]))
            else:
                if not partial:
                    step.block_updates.append(BlockUpdate(beam.slot, full, beam.blocks[full:]))
                if beam.sampled != token:
                    step.token_updates.append(TokenUpdate(beam.slot, position, [token]))
            step.chunks.append(ScheduledChunk(beam.slot, position, 1, True, request.request_id))
            step.requests.append(request)
        request.num_in_flight += len(self.beams)
        request.steps_in_flight += len(self.beams)
        self.branches = []
        return True

    def outputs(self, request: Request) -> list[RequestOutput]:
        """The outputs of a search that is over."""
        outputs = []
        for index, request_id in enumerate(self.output_ids):
            if request_id is None:
                continue
            if index >= len(self.search.hypotheses):
                error = RequestError(message=f"the beams found {index} answers and no more; lower n")
                outputs.append(RequestOutput(request_id=request_id, finish_reason="abort", error=error))
                continue
            hypothesis = self.search.hypotheses[index]
            tokens, logprobs = self.search.tokens_of(hypothesis)
            outputs.append(
                RequestOutput(
                    request_id=request_id,
                    token_ids=tokens,
                    logprobs=logprobs,
                    finish_reason=hypothesis.reason,
                    stop_token_id=hypothesis.stop_token_id,
                    cached_tokens=None if index else request.cached_tokens,
                    queue_seconds=None if index else request.queue_seconds,
                    prompt_logprobs=None if index else request.prompt_logprobs,
                )
            )
        return outputs

    def _inherit(self, cache: KVCacheManager, full: int, freed_slots: list[int]) -> None:
        """Give the blocks, and where it can be the slots, of the last beams to the next ones."""
        parents, heirs = self.beams, set[int]()
        self.beams = []
        for branch in self.branches:
            beam = parents[branch.parent]
            if branch.parent in heirs:
                beam = Beam(NO_SLOT, beam.blocks[:full])
                cache.share(beam.blocks)
            heirs.add(branch.parent)
            self.beams.append(beam)
        for index, beam in enumerate(parents):
            if index not in heirs:
                cache.release(beam.blocks)
                freed_slots.append(beam.slot)
                self.spare_slots.append(beam.slot)

    def _new_request(self, slot: int, request: Request, tokens: list[int]) -> NewRequest:
        return NewRequest(
            slot=slot,
            request_id=request.request_id,
            token_ids=request.prompt_token_ids + tokens,
            num_prompt_tokens=request.num_prompt_tokens,
            sampling=self.search.slot_sampling,
            adapter_slot=request.adapter_slot,
            images=request.images,
        )
