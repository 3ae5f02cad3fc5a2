"""Messages about adapters between rank 0 and the other ranks, on the connection that steps take (msgpack over ZeroMQ).

Rank 0 numbers adapters as plans do. A plan that uses one is sent after all ranks have said that they have read it, and
one that is to be forgotten is used by no later plan.
"""

from __future__ import annotations

from typing import Final

import msgspec


class ReadAdapterMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="read_adapter"):
    """Rank 0 → all: read your part of the adapter, and reply with :class:`AdapterReadMessage`."""

    number: int
    folder: str


class ForgetAdapterMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="forget_adapter"):
    """Rank 0 → all: free its memory, or do not keep it once it is read. Unknown numbers are ignored."""

    number: int


class AdapterReadMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="adapter_read"):
    """A rank → rank 0: it has read an adapter, or why it has not."""

    rank: int
    number: int
    digest: bytes = b""
    """Of the whole adapter's content, of which the rank has a part."""
    error: str = ""


AdapterMessage = ReadAdapterMessage | ForgetAdapterMessage
"""What rank 0 sends."""
_ENCODER: Final = msgspec.msgpack.Encoder()
_READ: Final = msgspec.msgpack.Decoder(AdapterReadMessage)


def encode_adapter(message: AdapterMessage | AdapterReadMessage) -> bytes:
    """Any of them."""
    return _ENCODER.encode(message)


def decode_read(payload: bytes) -> AdapterReadMessage:
    """What a rank has sent. Raises ``msgspec.DecodeError``."""
    return _READ.decode(payload)
