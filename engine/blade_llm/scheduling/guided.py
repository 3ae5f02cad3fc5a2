"""A request whose answer follows a grammar: what was drawn moves the grammar on, and where it leaves no choice the
tokens are known without a draw.

Forced tokens are appended at once and computed together with the last one drawn, in one decode of several positions:
that is a jump. It needs every token before it to be known, so a request with a draw in flight is held back for a step
when that saves more than it costs.
"""

from __future__ import annotations

from typing import NamedTuple

from blade_llm.scheduling.grammar import Grammar
from blade_llm.scheduling.plan import FinishReason
from blade_llm.scheduling.request import Request, Status


class Progress(NamedTuple):
    """What a draw brought in the end."""

    tokens: list[int]
    """Drawn and forced ones."""
    reason: FinishReason | None
    stop_token_id: int | None
    error: str | None


def begin(request: Request, grammar: Grammar) -> None:
    """Give ``request`` the tokens that every answer begins with. One is left to the first draw.

    An answer that has begun elsewhere is followed to where it is: what had to come after its last draw is in it.

    Raises ValueError when the grammar contradicts itself, or the answer that has begun.
    """
    if request.output_token_ids:
        if not request.closing:
            grammar.accept(list(request.output_token_ids))
        return
    if request.sampling.logprobs is not None:
        return
    forced = grammar.forced()[:-1][: request.max_total - len(request.token_ids) - 1]
    stop = next((index for index, token in enumerate(forced) if token in request.stop_ids), len(forced))
    if forced := forced[:stop]:
        grammar.accept(forced)
        request.token_ids += forced
        request.undelivered = forced


def follow(
    request: Request, grammar: Grammar, drawn: list[int], reason: FinishReason | None, stop_token_id: int | None
) -> Progress:
    """``drawn`` was appended, and ends the request for ``reason``, if for any."""
    if request.closing:
        return Progress(request.undelivered, "stop", None, None)
    tokens, request.undelivered = request.undelivered + drawn, []
    if stop_token_id is not None:
        return Progress(tokens, reason, stop_token_id, None)
    try:
        grammar.accept(drawn)
        if grammar.finished:
            return Progress(tokens, "stop", None, None)
        if reason is not None or request.sampling.logprobs is not None:
            return Progress(tokens, reason, None, None)
        forced = grammar.forced()
        if request.num_in_flight:
            # The draws in flight will bring the first of them; two more make up for the step that is missed.
            if request.decoding and len(forced) - request.num_in_flight >= 2:
                request.decoding = False
            return Progress(tokens, None, None, None)
        return _jump(request, grammar, tokens, forced)
    except ValueError as error:
        return Progress([], "abort", None, f"structure: the answer left its grammar: {error}")


def resume(request: Request) -> None:
    """Nothing was drawn: go on, if it was held back for that."""
    if request.grammar is not None and request.status is Status.RUNNING and not request.num_in_flight:
        request.decoding = request.decoding or request.num_computed == request.prefill_end


def _jump(request: Request, grammar: Grammar, tokens: list[int], forced: list[int]) -> Progress:
    """Append ``forced`` up to the first that ends the request."""
    known, start = request.token_ids, len(request.token_ids)
    reason: FinishReason | None = None
    stop_token_id: int | None = None
    for token in forced:
        if token in request.stop_ids:
            # Before min_tokens it could not be drawn; then the answer ends for want of another token.
            too_early = len(known) - request.num_prompt_tokens < request.sampling.min_tokens
            reason, stop_token_id = "stop", None if too_early else token
            break
        known.append(token)
        if len(known) >= request.max_total:
            reason = "length"
            break
    appended = known[start:]
    if appended:
        grammar.accept(appended)
        tokens = tokens + appended
        if grammar.finished and stop_token_id is None:
            reason = "stop"
    if request.status is Status.RUNNING:  # else it enters again with all it has
        request.jumping = bool(appended)
        request.decoding = not appended
        if appended:
            request.num_computed, request.prefill_end = start - 1, len(known)
    return Progress(tokens, reason, stop_token_id, None)
