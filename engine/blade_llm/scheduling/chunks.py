"""Schedules a chunk of more than one position for one request: a chunk of its prefill, or the tokens that its grammar
forced."""

from __future__ import annotations

from typing import Final

from blade_llm.scheduling.phase import Phase
from blade_llm.scheduling.plan import ScheduledChunk, TokenUpdate
from blade_llm.scheduling.request import Request
from blade_llm.scheduling.request_sets import RequestSets
from blade_llm.scheduling.step import Step

MAX_FORCED_TOKENS_BESIDE_OTHERS: Final = 16
"""Positions. Forced tokens save their request steps, but all others wait for them: so many make a step with decodes
hardly longer (:class:`~blade_llm.scheduling.budget.prefill.PrefillBudget` begins with as many), and most forced
sequences, the names and the punctuation of JSON, are shorter."""


def schedule_chunk(step: Step, request: Request, count: int, sets: RequestSets) -> None:
    """Schedule the next ``count`` tokens of a running request's prefill (chunked prefill)."""
    _schedule(step, request, count, sets)
    step.tokens_left -= count
    step.prefill_tokens += count


def schedule_forced_tokens(step: Step, request: Request, sets: RequestSets, tokens_left: int) -> int:
    """Compute the last sampled token and those forced after it, then sample; returns how many tokens that takes.

    What does not fit into the step, or is more than others should wait for, is left as a prefill.
    """
    start, end = request.num_computed, request.prefill_end
    if not tokens_left:
        return 0
    if sets.cache.blocks_for(end) > len(request.block_table) and not sets.grow(step, request, end):
        return 0
    step.token_updates.append(TokenUpdate(request.slot, start + 1, request.token_ids[start + 1 : end]))
    count = min(end - start, tokens_left)
    if len(sets.running) > 1:
        count = min(count, MAX_FORCED_TOKENS_BESIDE_OTHERS)
    _schedule(step, request, count, sets)
    step.prefill_tokens += count - 1
    return count


def _schedule(step: Step, request: Request, count: int, sets: RequestSets) -> None:
    """Compute ``count`` known positions; sample after the last of them, unless only its hidden state is wanted."""
    start = request.num_computed
    last = start + count == request.prefill_end
    sample = last and not request.pooling
    step.chunks.append(ScheduledChunk(request.slot, start, count, sample, request.request_id))
    step.requests.append(request)
    request.num_computed = start + count
    if last:
        request.enter_phase(_phase_after_prefill(request))
    elif request.phase is Phase.FORCED_TOKENS:
        request.enter_phase(Phase.PREFILL)
    request.num_in_flight += sample
    request.steps_in_flight += 1
    sets.launched(request, step.number)


def _phase_after_prefill(request: Request) -> Phase:
    if request.pooling:
        return Phase.AWAITING_RESULTS
    return Phase.BEAM_SEARCH if request.is_beam_search else Phase.DECODE
