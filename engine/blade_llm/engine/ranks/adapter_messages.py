"""Messages about adapters between rank 0 and the other ranks, on the connection that steps take (msgpack over ZeroMQ).

Rank 0 numbers adapters as plans do. A plan that uses one is sent after all ranks have said that they have read it, and
one that is to be forgotten is used by no later plan.
"""

from __future__ import annotations

from typing import Final

import msgspec


class FetchAdapterMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="fetch_adapter"):
    """Rank 0 → all: one rank of each other machine downloads an adapter, and replies with
    :class:`AdapterFetchedMessage`."""

    number: int
    """Of this download; adapters are numbered when they are read."""
    origin: str
    """Its id in a hub, bucket or registry."""


class ReadAdapterMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="read_adapter"):
    """Rank 0 → all: read your part of the adapter, and reply with :class:`AdapterReadMessage`."""

    number: int
    folder: str
    """On rank 0's machine, absolute."""
    origin: str = ""
    """The id by which another machine finds it in its own cache of downloads; empty: it has the same folder."""


class ForgetAdapterMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="forget_adapter"):
    """Rank 0 → all: free its memory, or do not keep it once it is read. Unknown numbers are ignored."""

    number: int


class AdapterFetchedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="adapter_fetched"):
    """A rank → rank 0: its machine has the files of an adapter, or why it has not."""

    rank: int
    number: int
    error: str = ""


class AdapterReadMessage(msgspec.Struct, frozen=True, array_like=True, gc=False, tag="adapter_read"):
    """A rank → rank 0: it has read an adapter, or why it has not."""

    rank: int
    number: int
    digest: bytes = b""
    """Of the whole adapter's content, of which the rank has a part."""
    error: str = ""


AdapterMessage = FetchAdapterMessage | ReadAdapterMessage | ForgetAdapterMessage
"""What rank 0 sends."""
AdapterReply = AdapterFetchedMessage | AdapterReadMessage
"""What it gets."""
_ENCODER: Final = msgspec.msgpack.Encoder()
_REPLY: Final = msgspec.msgpack.Decoder[AdapterReply](AdapterReply)


def encode_adapter(message: AdapterMessage | AdapterReply) -> bytes:
    """Any of them."""
    return _ENCODER.encode(message)


def decode_reply(payload: bytes) -> AdapterReply:
    """What a rank has sent. Raises ``msgspec.DecodeError``."""
    reply: AdapterReply = _REPLY.decode(payload)
    return reply
