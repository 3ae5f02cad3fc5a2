"""Messages between rank 0 and the other ranks (msgpack over ZeroMQ).

All ranks get the same bytes, so a message is encoded once however many ranks there are. The pixels of new images are
further frames of the message (:mod:`blade_llm.engine.pixel_frames`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import zmq

from blade_llm.config import EngineConfig
from blade_llm.engine.messages import EngineFailure
from blade_llm.engine.pixel_frames import headers_of, join
from blade_llm.engine.ranks.adapter_messages import AdapterMessage
from blade_llm.sampling.masks import TokenMasks
from blade_llm.scheduling.plan import StepPlan


class RankStart(msgspec.Struct, frozen=True, kw_only=True):
    """Rank 0 → another rank, on its standard input: all it needs to start."""

    config: EngineConfig
    rank: int
    """1 .. size - 1."""
    size: int
    """Ranks, rank 0 included."""
    plans: str
    """ZeroMQ endpoint that the steps come from."""
    group: str
    """Where the ranks meet for their collectives; opaque to everyone but :mod:`blade_llm.parallel`."""
    failure_pipe: int
    """Inherited descriptor a fatal exception is written to, as :class:`RankFailure`."""
    build: str
    """``module:function`` that turns this message into a :class:`~blade_llm.scheduling.plan.Runner`."""
    version: str
    """Rank 0's version; another one plans and computes differently."""
    log_level: str = "INFO"
    session_key: str = ""
    """Secret key (CURVE, in Z85) of the sockets that ranks of several machines listen on, which lets in whoever knows
    it; empty: one host, whose sockets nobody else reaches."""
    device_type: str = ""
    """Rank 0's: cpu or cuda; empty: it is on the same machine."""


class RankReady(msgspec.Struct, frozen=True, kw_only=True):
    """A rank → rank 0: the model is loaded and the next message is awaited."""

    rank: int
    size: int
    version: str


class RankFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A rank → rank 0, through its failure pipe: why it exits."""

    failure: EngineFailure
    consequence: bool = False
    """A collective failed, as all do when another rank is lost, which is the one to report then."""


class ForwardMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="forward"):
    """Rank 0 → all: launch the forward pass of this step."""

    plan: StepPlan


class MaskBits(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """:class:`~blade_llm.sampling.masks.TokenMasks` on their way."""

    indices: list[int]
    width: int
    """Words of a row."""
    words: memoryview
    """[len(indices), width] int32 in this host's byte order."""


class SamplingMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="sampling"):
    """Rank 0 → all: launch the sampling of the last forward pass, also where no slot of it samples."""

    masks: MaskBits | None


class ReleaseCacheMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="release_cache"):
    """Rank 0 → all: give back the memory of the KV cache."""


RankMessage = ForwardMessage | SamplingMessage | ReleaseCacheMessage | AdapterMessage
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder[RankMessage](RankMessage)


def encode_forward(plan: StepPlan) -> bytes:
    """The message that launches ``plan``, whose pixels go behind it."""
    if plan.new_images:
        plan = msgspec.structs.replace(plan, new_images=headers_of(plan.new_images))
    return _ENCODER.encode(ForwardMessage(plan))


def encode_release_cache() -> bytes:
    """The message that gives back the memory of KV caches."""
    return _ENCODER.encode(ReleaseCacheMessage())


def encode_sampling(masks: TokenMasks | None) -> bytes:
    """The message that launches the sampling with ``masks``, which are copied: they may be overwritten afterwards."""
    if masks is None:
        return _ENCODER.encode(SamplingMessage(None))
    words = np.ascontiguousarray(masks.words, dtype=np.int32)
    width = words.shape[1]
    return _ENCODER.encode(SamplingMessage(MaskBits(masks.indices, width, words.reshape(-1).view(np.uint8).data)))


def decode(payload: bytes) -> RankMessage:
    """Any message, without the frames behind it. Raises ``msgspec.DecodeError``."""
    message: RankMessage = _DECODER.decode(payload)
    return message


def plan_with(message: ForwardMessage, frames: Sequence[zmq.Frame]) -> StepPlan:
    """The plan with the pixels of ``frames``, whose memory they are. Raises ``ValueError`` for another number of frames
    than the plan has new images."""
    plan = message.plan
    images = join(plan.new_images, frames)
    return msgspec.structs.replace(plan, new_images=images) if images else plan


def masks_of(message: SamplingMessage) -> TokenMasks | None:
    """The masks of a message, in memory of their own, writable as torch wants it."""
    bits = message.masks
    if bits is None:
        return None
    words = np.frombuffer(bits.words, dtype=np.int32).reshape(len(bits.indices), bits.width)
    return TokenMasks(bits.indices, words.copy())


def plan_bytes_per_slot(plan: StepPlan) -> float:
    """Bytes that the message of ``plan`` takes for each slot that it computes, pixels apart."""
    return len(encode_forward(plan)) / max(1, len(plan.chunks))
