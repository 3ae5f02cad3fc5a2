"""The output of one request in one step: the scheduler makes it, and it travels as it is to the API server."""

from __future__ import annotations

from typing import Literal

import msgspec

from blade_llm.sampling.parameters import TokenLogprobs


class RequestError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why the engine refused or aborted a request."""

    message: str
    """What is wrong and what to change; with a ``field``, the rest of a sentence that begins with the field's name."""
    kind: Literal[
        "invalid_request",
        "invalid_structure",
        "overloaded",
        "invalid_logits",
        "unknown_adapter",
        "adapter_differs",
        "conflict",
    ] = "invalid_request"
    """``overloaded``: the request is not at fault and may be sent again. ``invalid_logits``: the model is at fault.
    ``unknown_adapter``: there is no such adapter here, or it cannot be served."""
    field: str = ""
    """The sampling parameter at fault; empty: the prompt or the request as a whole."""

    def text(self, field: str = "") -> str:
        """The whole message. ``field``: the name that the client knows the parameter by, where that differs."""
        if not self.field:
            return self.message
        separator = ": " if self.kind == "invalid_structure" else " "
        return f"{field or self.field}{separator}{self.message}"

    def __str__(self) -> str:
        return self.text()


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Progress of one request in one step."""

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    """``stop``, ``length`` or ``abort``; None while it runs."""
    stop_token_id: int | None = None
    """The end-of-sequence or stop id that ended it (it is not part of the text)."""
    stop_logprobs: TokenLogprobs | None = None
    """Its log-probabilities, where those of tokens are wanted and it was sampled."""
    draft_tokens: int = 0
    """Draft tokens that this step verified."""
    accepted_tokens: int = 0
    """Those of them that are among ``token_ids``."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; set on a request's first output."""
    queue_seconds: float | None = None
    """How long it waited for its first step, for a grammar or an adapter included; on a request's first output."""
    adapter_seconds: float = 0.0
    """The part of that in which its adapter was loaded."""
    preempted_after: list[float] = []
    """When it was preempted, in seconds from its arrival; on its last output."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One for each prompt token, None for the first; on a request's first output, if it wants them."""
    adapter_digest: str = ""
    """Of the content of the adapter that computes it, in hexadecimal; on a request's first output, if it generates
    tokens with an adapter."""
    embedding: bytes | None = None
    """The pooled hidden state, fp32 little-endian; with ``finish_reason`` ``stop`` and no tokens."""
    error: RequestError | None = None
    """Why the request was refused (then ``finish_reason`` is ``abort``). The scheduler raises; owners fill this in."""
