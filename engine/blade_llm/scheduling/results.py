"""From the results of a step to the outputs of a request: tokens up to the first that ends it, log-probabilities of the
prompt, and pooled states."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from blade_llm.cache.manager import KVCacheManager
from blade_llm.sampling.parameters import TokenLogprobs
from blade_llm.scheduling.guided import advance_grammar
from blade_llm.scheduling.output import RequestError, RequestOutput
from blade_llm.scheduling.phase import Phase
from blade_llm.scheduling.plan import FinishReason, StepResult
from blade_llm.scheduling.request import NO_SLOT, Request
from blade_llm.scheduling.step import Step


def append_sampled(
    request: Request, tokens: list[int], logprobs: list[TokenLogprobs] | None, cache: KVCacheManager
) -> RequestOutput:
    """Append sampled tokens up to the first that ends the request; its owner ends it."""
    known = request.token_ids
    length, kept = len(known), 0
    reason: FinishReason | None = None
    stop_token_id: int | None = None
    stop_logprobs: TokenLogprobs | None = None
    for token in tokens:
        known.append(token)
        if token in request.stop_ids:
            reason, stop_token_id = "stop", token
            stop_logprobs = None if logprobs is None else logprobs[kept]
            break
        kept += 1
        if length + kept >= request.max_total:
            reason = "length"
            break
    if reason is not None:
        tokens = tokens[:kept]
        logprobs = logprobs[:kept] if logprobs is not None else None
    if request.slot != NO_SLOT:
        register_blocks(request, len(known) - 1, cache)
    error: RequestError | None = None
    if request.grammar is not None or request.output_complete:
        if request.grammar is None:
            tokens, logprobs, reason, stop_token_id = [], None, "stop", None
        else:
            progress = advance_grammar(request, request.grammar, tokens, reason, stop_token_id)
            tokens, reason, stop_token_id, error = progress
    output = RequestOutput(
        request_id=request.request_id,
        token_ids=tokens,
        logprobs=logprobs,
        finish_reason=reason,
        stop_token_id=stop_token_id,
        stop_logprobs=None if stop_token_id is None else stop_logprobs,
        error=error,
    )
    if request.has_output:
        return output
    request.has_output = True
    return msgspec.structs.replace(
        output,
        cached_tokens=request.cached_tokens,
        queue_seconds=request.queue_seconds,
        adapter_seconds=request.adapter_seconds,
        prompt_logprobs=request.prompt_logprobs,
        adapter_digest=request.adapter_digest.hex(),
    )


def invalid_outputs(request_ids: Iterable[str | None]) -> list[RequestOutput]:
    """The outputs of a request for which the model computed no numbers; its owner ends it."""
    error = RequestError(
        message="the model computed NaN for this request: its weights are damaged, or their values leave the range of "
        "the compute type; check the model's files, or serve it with --dtype bfloat16 or float32",
        kind="invalid_logits",
    )
    return [
        RequestOutput(request_id=request_id, finish_reason="abort", error=error)
        for request_id in request_ids
        if request_id is not None
    ]


def exhausted(step: Step, result: StepResult) -> list[tuple[Request, RequestError]]:
    """The live requests for which no token was left to sample, and the error of each."""
    if not result.exhausted:
        return []
    sampling = [pair for pair in zip(step.chunks, step.requests, strict=True) if pair[0].sample]
    found = []
    for index in result.exhausted:
        chunk, request = sampling[index]
        tokens = result.tokens[index]
        before = tokens[: step.most_sampled.get(chunk.slot, len(tokens))]
        if len(before) < len(tokens) or request.phase is Phase.FINISHED or request.output_complete:
            continue
        before.pop()
        ends = len(request.token_ids) + len(before) >= request.max_total
        if not (ends or request.stop_ids.intersection(before)):
            found.append((request, _no_token_left(request)))
    return found


def _no_token_left(request: Request) -> RequestError:
    field, others = "bad_words", "min_tokens and logit_bias"
    if request.sampling.allowed_token_ids is not None:
        field, others = "allowed_token_ids", "bad_words, min_tokens and logit_bias"
    if request.grammar is not None:
        others = f"the structure, {others}"
    length = len(request.token_ids) - request.num_prompt_tokens
    return RequestError(
        field=field,
        message=f"leaves no token to go on with after {length} tokens of the answer, with what {others} forbid; allow "
        "more tokens",
    )


def pooled_output(request: Request, embedding: bytes) -> RequestOutput:
    """The output of a request for a pooled state; its owner ends it."""
    return RequestOutput(
        request_id=request.request_id,
        finish_reason="stop",
        cached_tokens=request.cached_tokens,
        queue_seconds=request.queue_seconds,
        prompt_logprobs=request.prompt_logprobs,
        embedding=embedding,
    )


def register_blocks(request: Request, num_computed: int, cache: KVCacheManager) -> None:
    """Add the blocks that the first ``num_computed`` positions fill to the prefix cache."""
    full = num_computed // cache.block_size
    if full > request.num_registered:
        cache.register(request.chain, request.token_ids, request.block_table, request.num_registered, full)
        request.num_registered = full


def is_launched(step: Step, result: StepResult) -> bool:
    """Whether no graph of a mixed step computes what ``step`` did: prompt outputs, tokens of images."""
    return step.prefill_tokens > 0 and (_has_prompt_outputs(step, result) or _has_image_tokens(step))


def _has_prompt_outputs(step: Step, result: StepResult) -> bool:
    """A mean, or a first state, is in the result of its last chunk only."""
    if result.prompt_logprobs or result.embeddings:
        return True
    return any(request.pooling in ("mean", "cls") for request in step.requests)


def _has_image_tokens(step: Step) -> bool:
    for chunk, request in zip(step.chunks, step.requests, strict=True):
        if chunk.start >= request.num_prompt_tokens:  # behind all images
            continue
        end = chunk.start + chunk.count
        if any(image.start < end and chunk.start < image.end for image in request.images):
            return True
    return False


def collect_prompt_logprobs(step: Step, result: StepResult) -> None:
    """Keep each position's log-probabilities once: after a preemption some are computed again."""
    for index, logprobs in result.prompt_logprobs.items():
        collected = step.requests[index].prompt_logprobs
        if collected is not None:
            collected += logprobs[max(0, len(collected) - 1 - step.chunks[index].start) :]
