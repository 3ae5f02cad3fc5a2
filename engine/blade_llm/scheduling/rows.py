"""What the runner is told of a request that enters a row."""

from __future__ import annotations

import msgspec

from blade_llm.scheduling.plan import NewRow
from blade_llm.scheduling.request import Request


def new_row(request: Request) -> NewRow:
    """What the runner has to know of ``request``, which has just got its row."""
    sampling, beams = request.sampling, request.beams
    if beams is not None:
        asked = sampling.prompt_logprobs
        sampling = msgspec.structs.replace(beams.search.row_sampling, prompt_logprobs=asked)
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
