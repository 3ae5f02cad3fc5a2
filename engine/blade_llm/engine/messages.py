"""Messages between API-server processes and the engine process (msgpack over ZeroMQ)."""

from __future__ import annotations

from typing import Literal

import msgspec

from blade_llm.config import EngineConfig
from blade_llm.sampling.parameters import SamplingParams
from blade_llm.scheduling.output import RequestError as RequestError
from blade_llm.scheduling.output import RequestOutput as RequestOutput
from blade_llm.spec.vision.images import ImagePixels, ImageSpan
from blade_protocol.adapters import AdapterInfo as AdapterInfo
from blade_protocol.state import EngineState, KVBatch


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """API server → engine: start generating. ``sampling.seed`` is already set."""

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    sample_index: int = 0
    sibling_ids: list[str] = []
    """Request ids of further samples of the same prompt, with the sample indices that follow. All share the prompt's
    blocks. With a beam search: of the second best output, the third best, … (``1 + len <= beam_width``)."""
    pooling: Literal["", "last", "mean", "cls"] = ""
    """Not empty: generate nothing, return the prompt's hidden states after the last norm: the last token's, the
    mean of all, or the first token's (``cls``). Not scaled to length 1."""
    second_text: int = 0
    """With ``pooling``: where the second text of a pair begins, for models with token types; 0: there is none. A model
    with a classifier returns its logit instead of the pooled state."""
    output_token_ids: list[int] = []
    """Tokens that another engine has generated already, to be continued. They count as output all the same
    (``max_tokens``, penalties, noise), and only new tokens are returned."""
    cache_salt: str = ""
    """Requests with different salts never share prefix-cache blocks."""
    priority: int = 0
    """Lower runs earlier; equal ones first come, first served."""
    adapter: str = ""
    """Name or folder of a LoRA adapter; empty: the base model."""
    adapter_digest: str = ""
    """Not empty: refuse the request unless the adapter's content has this digest (hexadecimal)."""

    images: list[ImageSpan] = []
    """Where the prompt has images, in order: image tokens stand there, which are fed with the images' embeddings."""
    pixels: list[ImagePixels] = []
    """Of each of ``images``, those of equal ones once. On their way they are further frames, see
    :mod:`~blade_llm.engine.pixel_frames`."""

    @property
    def all_request_ids(self) -> list[str]:
        """The ids of all samples or beams, in order; outputs carry them."""
        return [self.request_id, *self.sibling_ids]


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """API server → engine: abort these (client disconnected, or a stop string was found). Unknown ids are ignored."""

    request_ids: list[str]


class StepOutputs(msgspec.Struct, frozen=True, kw_only=True, tag="outputs"):
    """Engine → API server: all progress of one step for that server's requests."""

    outputs: list[RequestOutput]


class PixelsTaken(msgspec.Struct, frozen=True, kw_only=True, tag="pixels_taken"):
    """Engine → API server: a request with pixels has been taken out of the socket, whatever becomes of it."""

    nbytes: int


class StateUpdate(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """Engine → API server: pushed on change, at most ten times a second."""

    state: EngineState
    kv: KVBatch | None = None
    """For the API server that follows the prefix cache. One that is ``lost`` brings all digests there are."""


class LoadAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="load_adapter"):
    """API server → engine: load a LoRA adapter and give it a name; answered with :class:`AdapterReply`."""

    call_id: int
    name: str
    path: str
    """Folder, or where the model loader finds one: a hub id, a bucket."""
    pinned: bool = False
    """Keep it in host memory."""
    only_allowed_roots: bool = False
    """Refuse what is not below the folders that clients may use."""
    wait: bool = True
    """Answer when it is loaded; False: at once."""
    replace: bool = False
    """If the name has another path, it gets this one once its weights are read."""
    register_only: bool = False
    """Check its files; read its weights for its first request."""


class UnloadAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="unload_adapter"):
    """API server → engine: forget an adapter; requests that have begun with it end normally."""

    call_id: int
    name: str


class ListAdapters(msgspec.Struct, frozen=True, kw_only=True, tag="list_adapters"):
    """API server → engine: which adapters there are."""

    call_id: int


class AdapterReply(msgspec.Struct, frozen=True, kw_only=True, tag="adapter_reply"):
    """Engine → API server: the answer to one of the three above."""

    call_id: int
    error: RequestError | None = None
    adapters: list[AdapterInfo] = []
    """All, when they are listed; the one of a call to load."""
    pending: bool = False
    """What was asked for goes on."""


class DrainUpdate(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """API server → engine: drain, or accept requests again. Refusing is up to the API servers."""

    draining: bool
    standby: bool = False
    """While it drains: give back the memory of the KV cache once nothing uses it."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """API server → engine, its first message; replied to with :class:`EngineReady` once the model is loaded."""

    follow_kv: bool = False
    """Send this API server what enters and leaves the prefix cache."""


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Engine → API server: its limits, and how long starting took."""

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
    heartbeat: int
    """Inherited descriptor of the memory that shows that a step goes on."""
    build: str
    """``module:function`` that turns the configuration into an engine core. Tests put a fake one here."""
    log_level: str = "INFO"


class EngineFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an engine process exited."""

    message: str
    traceback: str = ""
    user_error: bool = False
    """Something the user can change (files, memory); the message says what, and a traceback would only hide it."""


ClientToEngine = GenerateRequest | AbortRequest | DrainUpdate | Hello | LoadAdapter | UnloadAdapter | ListAdapters
EngineToClient = StepOutputs | StateUpdate | EngineReady | AdapterReply | PixelsTaken
