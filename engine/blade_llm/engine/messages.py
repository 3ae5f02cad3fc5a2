"""Messages between front processes and the engine process (msgpack over ZeroMQ), and the engine's answer per step."""

from __future__ import annotations

from typing import Literal

import msgspec

from blade_llm.config import EngineConfig
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.output import RequestOutput as RequestOutput
from blade_protocol.state import EngineState, KVBatch


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """Front → engine: start generating. ``sampling.seed`` is already set."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    sample_index: int = 0
    sibling_ids: list[str] = []
    """Request ids of further samples of the same prompt, with the sample indices that follow. All share the prompt's
    blocks. With a beam search: of the second best answer, the third best, … (``1 + len <= beam_width``)."""
    pooling: Literal["", "last", "mean"] = ""
    """Not empty: generate nothing, answer with the prompt's hidden states after the last norm: the last token's, or
    the mean of all. Not scaled to length 1."""
    output_token_ids: list[int] = []
    """What another engine has answered already: go on after it. The answer counts from its first token all the same
    (``max_tokens``, penalties, noise), and only what is new comes back."""
    cache_salt: str = ""
    """Requests with different salts never share prompt-cache blocks."""
    priority: int = 0
    """Lower runs earlier; equal ones first come, first served."""

    @property
    def answer_ids(self) -> list[str]:
        """The ids that outputs bear, in order."""
        return [self.request_id, *self.sibling_ids]


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Front → engine: forget these (client gone, or a stop string was found). Unknown ids are ignored."""

    request_ids: list[str]


class StepOutputs(msgspec.Struct, frozen=True, kw_only=True, tag="outputs"):
    """Engine → front: all progress of one step for this front's requests."""

    outputs: list[RequestOutput]


class StateUpdate(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """Engine → front: pushed on change, at most ten times a second."""

    state: EngineState
    kv: KVBatch | None = None
    """For the front that follows the prompt cache. One that is ``lost`` brings all digests there are."""


class DrainUpdate(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """Front → engine: the replica drains, or takes requests again. Only for the state: fronts do the refusing."""

    draining: bool


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """Front → engine, first message of each front; answered with :class:`EngineReady` once the model is loaded."""

    follow_kv: bool = False
    """Tell this front what enters and leaves the prompt cache."""


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Engine → front: what it can do, and how long starting took."""

    max_model_len: int
    device: str
    dtype: str
    timings: dict[str, float]
    """Start-up stage → seconds, in order."""
    state: EngineState
    hidden_size: int = 0
    """Numbers in an embedding; 0: not known."""


class EngineStart(msgspec.Struct, frozen=True, kw_only=True):
    """Parent → engine process, on its standard input: all it needs to start."""

    config: EngineConfig
    address: str
    """ZeroMQ endpoint to bind."""
    failure_pipe: int
    """Inherited descriptor a fatal exception is written to, as :class:`EngineFailure`."""
    build: str
    """``module:function`` that turns the configuration into an engine core. Tests put a fake runner here."""
    log_level: str = "INFO"


class EngineFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an engine process ended."""

    message: str
    traceback: str = ""
    user_error: bool = False
    """Something the user can change (files, memory); the message says what, and a traceback would only hide it."""


FrontToEngine = GenerateRequest | AbortRequest | DrainUpdate | Hello
EngineToFront = StepOutputs | StateUpdate | EngineReady
