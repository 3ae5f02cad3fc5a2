"""Messages between front processes and the engine process (msgpack over ZeroMQ), and the engine's answer per step."""

from __future__ import annotations

import msgspec

from blade_llm.sampling.parameters import SamplingParams, TokenLogprobs
from blade_protocol.state import EngineState


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """Front → engine: start generating. ``sampling.seed`` is already set."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    sample_index: int = 0
    cache_salt: str = ""
    """Requests with different salts never share prompt-cache blocks."""
    priority: int = 0
    """Lower runs earlier; equal ones first come, first served."""


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Front → engine: forget these (client gone, or a stop string was found). Unknown ids are ignored."""

    request_ids: list[str]


class StateRequest(msgspec.Struct, frozen=True, kw_only=True, tag="get_state"):
    """Front → engine: answer with a :class:`StateUpdate` now."""


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    error: str | None = None


class StepOutputs(msgspec.Struct, frozen=True, kw_only=True, tag="outputs"):
    """Engine → front: all progress of one step for this front's requests."""

    outputs: list[RequestOutput]


class StateUpdate(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """Engine → front: pushed on change, at most ten times a second, and on :class:`StateRequest`."""

    state: EngineState


FrontToEngine = GenerateRequest | AbortRequest | StateRequest
EngineToFront = StepOutputs | StateUpdate
