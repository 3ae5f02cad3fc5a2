"""What one step brought one request: the scheduler makes it, and it travels as it is to the front process."""

from __future__ import annotations

import msgspec

from blade_llm.sampling.parameters import TokenLogprobs


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Progress of one request in one step."""

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    """``stop``, ``length`` or ``abort``; None while it runs."""
    stop_token_id: int | None = None
    """The end-of-sequence or stop id that ended it (it is not part of the text)."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prompt cache; set on a request's first output."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One for each prompt token, None for the first; on a request's first output, if asked for."""
    embedding: bytes | None = None
    """The pooled hidden state, fp32 little-endian; with ``finish_reason`` ``stop`` and no tokens."""
    error: str | None = None
    """Why the request was refused (then ``finish_reason`` is ``abort``). The scheduler raises; owners fill this in."""
