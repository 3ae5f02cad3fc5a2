"""Messages of router replica sync: batches of events, in MessagePack.

Times go as ages, so clocks need not agree. A chain goes as 8 bytes a block; it means something only to a process that
hashes with the same key, which ``salt`` shows.
"""

import sys
from array import array
from collections.abc import Iterable
from typing import Annotated

import msgspec

from blade_router.policies.sync_log import EndedEvent, Event, SentEvent
from blade_router.request.block_hashes import hash_blocks
from blade_router.request.usage import Usage

VERSION = 1
MAX_BYTES = 128 << 10
"""Of a message."""
MAX_CHAIN = 1024
"""Blocks of a prompt that siblings learn of: 256 KB of text."""
EVENT_BYTES = 80
"""Of an event besides its chain, at most."""
SALT = [*hash_blocks(b"router replica sync".ljust(256), hash(("", ""))), sys.hash_info.width]
"""Equal in processes that hash alike."""

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Blocks = Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)]
Name = Annotated[str, msgspec.Meta(max_length=2048)]
Chain = Annotated[bytes, msgspec.Meta(max_length=MAX_CHAIN * 8)]


class Sent(msgspec.Struct, array_like=True, tag=0):
    number: Count
    age: Seconds
    endpoint: Name
    blocks: Blocks
    cached: Count
    whole: bool
    chain: Chain


class FirstByte(msgspec.Struct, array_like=True, tag=1):
    number: Count
    age: Seconds


class Ended(msgspec.Struct, array_like=True, tag=2):
    number: Count
    age: Seconds
    seconds: Seconds
    decoding: Seconds
    tokens: tuple[Count, Count, Count | None] | None
    """Prompt, completion, cached."""


class Batch(msgspec.Struct, array_like=True):
    """All that has happened at one process since its batch of the sequence before."""

    version: int
    sender: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    """Another one after each start."""
    router: Annotated[str, msgspec.Meta(max_length=64)]
    """The same for all workers of one router."""
    salt: list[int]
    sequence: Count
    events: list[Sent | FirstByte | Ended]


encode_batch = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(Batch).decode


def decode_batch(message: bytes) -> Batch:
    """The batch in a message.

    Raises:
        ValueError: it is none, of another version, or too long.
    """
    if len(message) > MAX_BYTES:
        raise ValueError(f"a message has at most {MAX_BYTES} bytes")
    batch = _decode(message)
    if batch.version != VERSION:
        raise ValueError(f"version {batch.version} of router replica sync, not {VERSION}")
    return batch


def pack(events: Iterable[Event], now: float) -> tuple[list[Sent | FirstByte | Ended], int]:
    """Events as they are sent, and how many of them, the oldest, found no room in the message."""
    packed: list[Sent | FirstByte | Ended] = []
    room = MAX_BYTES - 4096
    newest_first = list(events)[::-1]
    for event in newest_first:
        age = max(0.0, now - event.at)
        if isinstance(event, SentEvent):
            chain = array("q", event.chain[:MAX_CHAIN]).tobytes()
            name = event.endpoint[:2048]
            room -= len(chain) + len(name.encode())
            packed.append(Sent(event.number, age, name, event.blocks, event.cached, event.whole, chain))
        elif isinstance(event, EndedEvent):
            usage = event.usage
            tokens = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) if usage is not None else None
            packed.append(Ended(event.number, age, event.seconds, event.decoding, tokens))
        else:
            packed.append(FirstByte(event.number, age))
        room -= EVENT_BYTES
        if room < 0:
            packed.pop()
            break
    packed.reverse()
    return packed, len(newest_first) - len(packed)


def unpack_chain(chain: bytes) -> list[int]:
    """Block hashes; a part of one at the end is dropped."""
    hashes = array("q")
    hashes.frombytes(chain[: len(chain) // 8 * 8])
    return hashes.tolist()


def unpack_usage(tokens: tuple[int, int, int | None] | None) -> Usage | None:
    return Usage(*tokens) if tokens is not None else None
