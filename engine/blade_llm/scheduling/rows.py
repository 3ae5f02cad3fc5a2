"""What the runner is told of a request that enters a row."""

from __future__ import annotations

import msgspec

from blade_llm.scheduling.plan import NewRow
from blade_llm.scheduling.request import Request


def new_row(request: Request) -> NewRow:
    """What the runner has to know of ``request``, which has just got its row."""
    sampling, beams = request.sampling, request.beams
    asked = sampling.prompt_logprobs
    if request.prompt_logprobs is not None and len(request.prompt_logprobs) == request.num_prompt_tokens:
        asked = None  # preempted since: all of them are known
    if beams is not None:
        sampling = beams.search.row_sampling
    if sampling.prompt_logprobs != asked:
        sampling = msgspec.structs.replace(sampling, prompt_logprobs=asked)
    return NewRow(
        row=request.row,
        request_id=request.request_id,
        token_ids=list(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        sampling=sampling,
        sample_index=request.sample_index,
        masked_until_min_tokens=tuple(sorted(request.stop_ids)) if sampling.min_tokens else (),
        adapter_slot=request.adapter_slot,
        embeddings=request.embeddings,
        pooling=request.pooling,
    )
