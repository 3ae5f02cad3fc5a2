"""A request whose output follows a grammar: sampled tokens advance the grammar, and where it leaves no choice the
tokens are known without sampling (forced tokens, jump-forward decoding).

Forced tokens are appended at once and computed together with the last sampled one, in one decode of several positions.
It needs every token before it to be known, so a request with a token in flight is held back for a step when that saves
more than it costs.
"""

from __future__ import annotations

from typing import NamedTuple

from blade_llm.scheduling.grammar import Grammar
from blade_llm.scheduling.output import RequestError
from blade_llm.scheduling.phase import Phase
from blade_llm.scheduling.plan import FinishReason
from blade_llm.scheduling.request import Request


class Progress(NamedTuple):
    """The tokens of a step after the grammar has seen them."""

    tokens: list[int]
    """Sampled and forced ones."""
    reason: FinishReason | None
    stop_token_id: int | None
    error: RequestError | None


def structure_error(message: str) -> RequestError:
    """The error of a request whose structure cannot be followed, or not any further."""
    return RequestError(kind="invalid_structure", field="structure", message=message)


def append_initial_forced_tokens(request: Request, grammar: Grammar) -> None:
    """Give ``request`` the tokens that every output begins with. One is left to the first sampling.

    An output that has begun elsewhere is followed to where it is: tokens forced after its last sampled one are in it.

    Raises ValueError when the grammar contradicts itself, or the output that has begun.
    """
    if request.output_token_ids:
        if not request.output_complete:
            grammar.accept(list(request.output_token_ids))
        return
    if request.sampling.logprobs is not None:
        return
    forced = grammar.forced()[:-1][: request.max_total - len(request.token_ids) - 1]
    stop = next((index for index, token in enumerate(forced) if token in request.stop_ids), len(forced))
    if forced := forced[:stop]:
        grammar.accept(forced)
        request.token_ids += forced
        request.pending_forced_tokens = forced


def advance_grammar(
    request: Request, grammar: Grammar, sampled: list[int], reason: FinishReason | None, stop_token_id: int | None
) -> Progress:
    """Advance the grammar by ``sampled``, which was appended, and ends the request for ``reason``, if for any."""
    if request.output_complete:
        return Progress(request.pending_forced_tokens, "stop", None, None)
    tokens, request.pending_forced_tokens = request.pending_forced_tokens + sampled, []
    if stop_token_id is not None:
        return Progress(tokens, reason, stop_token_id, None)
    try:
        grammar.accept(sampled)
        if grammar.finished:
            return Progress(tokens, "stop", None, None)
        if reason is not None or request.sampling.logprobs is not None:
            return Progress(tokens, reason, None, None)
        forced = grammar.forced()
        if request.num_in_flight:
            # The tokens in flight will be the first of them; two more make up for the step that is missed.
            if request.phase is Phase.DECODE and len(forced) - request.num_in_flight >= 2:
                request.enter_phase(Phase.AWAITING_RESULTS)
            return Progress(tokens, None, None, None)
        return _append_forced_tokens(request, grammar, tokens, forced)
    except ValueError as error:
        return Progress([], "abort", None, structure_error(f"the answer left its grammar: {error}"))


def resume_decoding(request: Request) -> None:
    """Decode again, after a step that brought no token, if the request was held back for that."""
    if request.phase is Phase.AWAITING_RESULTS and not request.num_in_flight:
        request.enter_phase(Phase.DECODE)


def _append_forced_tokens(request: Request, grammar: Grammar, tokens: list[int], forced: list[int]) -> Progress:
    """Append ``forced`` up to the first that ends the request."""
    known, start = request.token_ids, len(request.token_ids)
    reason: FinishReason | None = None
    stop_token_id: int | None = None
    for token in forced:
        if token in request.stop_ids:
            # Before min_tokens it could not be sampled; then the output ends for want of another token.
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
    if request.is_running:  # else it enters again with all it has
        if appended:
            request.enter_phase(Phase.FORCED_TOKENS)
            request.num_computed, request.prefill_end = start - 1, len(known)
        elif request.phase is not Phase.DECODE:
            request.enter_phase(Phase.DECODE)
    return Progress(tokens, reason, stop_token_id, None)
