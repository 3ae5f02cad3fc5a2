"""Pixels on their way to the engine process, and from rank 0 to the others: further frames of a message, behind the one
that names their digests, grids and shapes.

They are up to hundreds of megabytes, and msgpack would copy them on the API server's event loop and again in the
engine between two steps, sending and receiving once more each (38 MB held the event loop for 100 ms). As frames they
are copied by the sockets' own threads alone: a sent frame is the worker's bytes, and a received one is the memory that
towers read. Shared memory would save those copies as well, but needs names, rights and somebody who cleans up after a
process that was killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import msgspec
import zmq

from blade_llm.spec.vision.images import ImagePixels

MAX_BYTES_ON_WAY: Final = 1 << 30
"""Pixels that one API server has sent and the engine process has not taken out of its socket yet, as between two steps;
what it has taken has a bound there (:class:`~blade_llm.scheduling.images.limits.EncoderLimits`)."""


def headers_of(images: Sequence[ImagePixels]) -> list[ImagePixels]:
    """The images without their pixels, which are frames behind them."""
    return [msgspec.structs.replace(image, pixels=b"") for image in images]


def join(images: Sequence[ImagePixels], frames: Sequence[zmq.Frame]) -> list[ImagePixels]:
    """Undo :func:`headers_of` without a copy: pixels are writable memory of ``frames``, which lasts as long as they do.

    Raises ``ValueError`` for another number of frames than images.
    """
    return [_with_memory(image, frame) for image, frame in zip(images, frames, strict=True)]


def _with_memory(image: ImagePixels, frame: zmq.Frame) -> ImagePixels:
    return msgspec.structs.replace(image, pixels=cast(bytes, frame.buffer))
