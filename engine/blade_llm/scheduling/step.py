"""A step while it is scheduled, and the scheduler's counts for the engine's state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.grammar import Grammar
from blade_llm.scheduling.plan import (
    AdapterUpdate,
    BlockCopy,
    BlockUpdate,
    DraftChunk,
    EncoderChunk,
    KVCopy,
    NewRequest,
    ScheduledChunk,
    StepPlan,
    TokenUpdate,
)
from blade_llm.scheduling.request import Request
from blade_llm.spec.vision.images import ImagePixels


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


class GuidedChunk(NamedTuple):
    """A sampling chunk whose request has a grammar."""

    row: int
    """Its first sampled position among the step's."""
    request: Request
    grammar: Grammar
    num_guesses: int
    """Draft tokens to verify, each going on from the one before."""


@dataclass(slots=True)
class Step:
    """A step that is being scheduled; after its launch the scheduler's update reads it."""

    number: int
    tokens_left: int
    chunks: list[ScheduledChunk] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    """One for each of ``chunks``. Not looked up by id later: an id may be used again meanwhile."""
    new_requests: list[NewRequest] = field(default_factory=list)
    block_updates: list[BlockUpdate] = field(default_factory=list)
    block_copies: list[BlockCopy] = field(default_factory=list)
    token_updates: list[TokenUpdate] = field(default_factory=list)
    num_decodes: int = 0
    prefill_tokens: int = 0
    draft_chunks: list[DraftChunk] = field(default_factory=list)
    kv_copies: list[KVCopy] = field(default_factory=list)
    most_sampled: dict[int, int] = field(default_factory=dict)
    """Slot → tokens that it brings at most: a grammar ends, or does not allow a draft token."""
    encoder: list[EncoderChunk] = field(default_factory=list)
    new_images: list[ImagePixels] = field(default_factory=list)
    freed_images: list[bytes] = field(default_factory=list)

    def plan(self, freed_slots: list[int], pipeline_stages: int, adapter_updates: list[tuple[int, int]]) -> StepPlan:
        """The plan for the runner."""
        return StepPlan(
            step=self.number,
            chunks=self.chunks,
            new_requests=self.new_requests,
            block_updates=self.block_updates,
            freed_slots=freed_slots,
            block_copies=self.block_copies,
            token_updates=self.token_updates,
            pipeline_stages=pipeline_stages,
            adapter_updates=[AdapterUpdate(*update) for update in adapter_updates],
            draft_chunks=self.draft_chunks,
            kv_copies=self.kv_copies,
            freed_images=self.freed_images,
            new_images=self.new_images,
            encoder=self.encoder,
        )

    def sort_chunks(self) -> None:
        """Put the chunks in :attr:`StepPlan.chunks`'s order, and keep the one they are in otherwise: a beam search
        matches its beams by it."""
        longer = [chunk.count > 1 for chunk in self.chunks]
        order = sorted(range(len(longer)), key=longer.__getitem__)
        self.chunks = [self.chunks[index] for index in order]
        self.requests = [self.requests[index] for index in order]


def new_request(request: Request, sampling: SamplingParams) -> NewRequest:
    """Describe ``request``, which has just got its slot, to the runner. ``sampling``: parameters of the slot."""
    wanted = request.sampling.prompt_logprobs
    if request.prompt_logprobs is not None and len(request.prompt_logprobs) == request.num_prompt_tokens:
        wanted = None  # preempted since: all of them are known
    if sampling.prompt_logprobs != wanted:
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=wanted)
    return NewRequest(
        slot=request.slot,
        request_id=request.request_id,
        token_ids=list(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        sampling=sampling,
        sample_index=request.sample_index,
        masked_until_min_tokens=tuple(sorted(request.stop_ids)) if sampling.min_tokens else (),
        adapter_slot=request.adapter_slot,
        images=request.images,
        pooling=request.pooling,
        second_text=request.second_text,
    )
