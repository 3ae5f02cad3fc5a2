"""One request's share of a step when it is more than one position: a piece of its prefill, or a jump over tokens that
its grammar forced."""

from __future__ import annotations

from typing import Final

from blade_llm.scheduling.plan import ScheduledRow, TokenUpdate
from blade_llm.scheduling.request import Request
from blade_llm.scheduling.residents import Residents
from blade_llm.scheduling.step import Step

LONGEST_JUMP_BESIDE_OTHERS: Final = 16
"""Positions. A jump saves its request steps, but all others wait for it: so many make a step with decodes hardly
longer (:class:`~blade_llm.scheduling.budget.PrefillBudget` begins with as many), and most jumps, over the names and the
punctuation of JSON, are shorter."""


def share_prefill(step: Step, request: Request, residents: Residents) -> None:
    """Give a request with a row as much of the step as it can use."""
    count = min(request.prefill_end - request.num_computed, step.tokens_left)
    _take(step, request, count, residents)
    step.tokens_left -= count
    step.prefill_tokens += count


def share_jump(step: Step, request: Request, residents: Residents, tokens_left: int) -> int:
    """Compute the last token drawn and those forced after it, then draw; returns how many tokens that takes.

    What does not fit into the step, or is more than others should wait for, is left as a prefill.
    """
    start, end = request.num_computed, request.prefill_end
    if not tokens_left:
        return 0
    if residents.cache.blocks_for(end) > len(request.block_table) and not residents.grow(step, request, end):
        return 0
    step.token_updates.append(TokenUpdate(request.row, start + 1, request.token_ids[start + 1 : end]))
    request.jumping = False
    count = min(end - start, tokens_left)
    if len(residents.running) > 1:
        count = min(count, LONGEST_JUMP_BESIDE_OTHERS)
    _take(step, request, count, residents)
    step.prefill_tokens += count - 1
    return count


def _take(step: Step, request: Request, count: int, residents: Residents) -> None:
    """Compute ``count`` known positions; draw after the last of them, unless only its state is wanted."""
    start = request.num_computed
    last = start + count == request.prefill_end
    sample = last and not request.pooling
    step.rows.append(ScheduledRow(request.row, start, count, sample, request.request_id))
    step.requests.append(request)
    request.num_computed = start + count
    request.decoding = sample and request.beams is None
    request.num_in_flight += sample
    request.steps_in_flight += 1
    residents.launched(request, step.number)
