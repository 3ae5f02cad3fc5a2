"""Draft tokens (speculative decoding): adds to the decodes of a step what a drafter proposes, where nobody else needs
the room.

A draft token is verified in the step that computes it: it is accepted where it equals the token that the model itself
samples there, so outputs are the same with and without. A decode with draft tokens is not scheduled again before its
result is known, as the next draft goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from blade_llm.scheduling.limits import SchedulerConfig
from blade_llm.scheduling.phase import Phase
from blade_llm.scheduling.plan import DraftChunk, DraftTree, TokenUpdate
from blade_llm.scheduling.request import Request
from blade_llm.scheduling.request_sets import RequestSets
from blade_llm.scheduling.step import Step

_MIN_SAMPLED: Final = 32


class Draft(NamedTuple):
    """The draft tokens of one decode."""

    length: int
    """Tokens. 0: it is an ordinary decode."""
    tokens: list[int] | None = None
    """The tokens; None: the runner's draft model makes them."""
    computed: tuple[int, int] | None = None
    """Positions, from the first to before the second, that the draft model computes before; they may be computed
    without drafting anything."""
    tree: DraftTree | None = None
    """How ``tokens`` branch; None: each goes on from the one before."""


class StepTokens(NamedTuple):
    """What a step computed."""

    decodes: int
    """Sequences that sampled, those with draft tokens included."""
    draft_tokens: int
    draft_steps: int
    """Draft tokens of the decode that had most."""
    prefill_tokens: int
    draft_prefill_tokens: int
    """Positions that the draft model computed without drafting."""


class StepRoom(NamedTuple):
    """What a step can have beyond what it has without drafts."""

    tokens: int
    sampled: int
    """Positions that are sampled at."""


class Drafter(Protocol):
    """Proposes draft tokens, and learns how many were accepted."""

    past_end: bool
    """Whether draft tokens may lie behind the last token that a request can have: some are no guesses of what comes."""

    def active(self, num_running: int) -> bool:
        """Whether decodes are to wait for their last token, so that drafts can follow it."""

    def propose(
        self, requests: Sequence[Request], rooms: Sequence[int], most: StepRoom, other_tokens: int
    ) -> Sequence[Draft]:
        """A draft for each of ``requests``, all of whose tokens are known.

        ``rooms``: draft tokens that each can have; ``most``: all together; ``other_tokens``: what else the step
        computes.
        """

    def observe(self, request: Request, drafted: int, accepted: int, window: Sequence[int] = ()) -> None:
        """Of so many draft tokens of ``request`` ``accepted`` in a row were accepted. ``window``: what was sampled
        after the ends of its tree's window."""

    def observe_step(self, step: StepTokens, seconds: float, host: float) -> None:
        """A step took ``seconds``, and began ``host`` seconds after the last one was delivered."""

    def failed(self) -> None:
        """The draft model computed what are no numbers."""

    def forget(self, request: Request) -> None:
        """The request has ended."""


def most_sampled(max_num_seqs: int) -> int:
    """Positions that a step with draft tokens samples at, at most: hardly more than a full batch without, whose memory
    for logits is planned."""
    return max(max_num_seqs, _MIN_SAMPLED)


def add_drafts(step: Step, drafter: Drafter, sets: RequestSets, config: SchedulerConfig) -> None:
    """Add draft tokens to the decodes of a step that is otherwise complete.

    They take only tokens that the step has left, and blocks that are free beyond one for each running request: no
    draft delays a prefill or preempts anybody.
    """
    others = sum(chunk.count for chunk in step.chunks)
    sampled = sum(chunk.sample for chunk in step.chunks)
    most = StepRoom(config.max_batch_tokens - others, most_sampled(config.max_num_seqs) - sampled)
    decodes = [
        index
        for index, (chunk, request) in enumerate(zip(step.chunks, step.requests, strict=True))
        if chunk.count == 1 and request.phase is Phase.DECODE and request.num_in_flight == 1
        if chunk.start == len(request.token_ids) - 1 and not request.output_complete
    ]
    if not decodes or min(most) <= 0:
        return
    requests = [step.requests[index] for index in decodes]
    spare = max(0, sets.cache.num_free - len(sets.running)) // len(decodes)
    longest = config.max_model_len if drafter.past_end else 0
    rooms = [_room(request, max(request.max_total, longest), spare, sets.cache.block_size) for request in requests]
    drafts = drafter.propose(requests, rooms, most, others - len(decodes))
    for index, request, draft in zip(decodes, requests, drafts, strict=True):
        if draft.length:
            _add(step, index, request, draft, sets)
        if draft.computed is not None:
            start, end = draft.computed
            step.draft_chunks.append(DraftChunk(request.slot, start, end - start))


def step_tokens(step: Step) -> StepTokens:
    """What ``step`` computes, for the drafter's costs."""
    drafts, most, drafting = 0, 0, set()
    for chunk in step.chunks:
        if count := chunk.num_draft_tokens:
            drafts += count
            most = max(most, count)
            drafting.add(chunk.slot)
    catching_up = sum(chunk.count for chunk in step.draft_chunks if chunk.slot not in drafting)
    return StepTokens(step.num_decodes, drafts, most, step.prefill_tokens, catching_up)


def _room(request: Request, longest: int, spare: int, block_size: int) -> int:
    """Draft tokens that ``request`` can have: within ``longest`` tokens, its blocks, and ``spare`` more."""
    known = len(request.token_ids)
    return max(0, min(longest - known - 1, (len(request.block_table) + spare) * block_size - known))


def _add(step: Step, index: int, request: Request, draft: Draft, sets: RequestSets) -> None:
    chunk, known = step.chunks[index], len(request.token_ids)
    if sets.cache.blocks_for(known + draft.length) > len(request.block_table):
        sets.grow(step, request, known + draft.length)
    if draft.tokens is not None:
        step.token_updates.append(TokenUpdate(request.slot, known, draft.tokens))
    step.chunks[index] = msgspec.structs.replace(
        chunk, count=1 + draft.length, num_draft_tokens=draft.length, tree=draft.tree
    )
    request.num_in_flight += draft.length
