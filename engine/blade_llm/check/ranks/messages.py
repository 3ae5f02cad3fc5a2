"""What machines say to each other while they check themselves: JSON, one message a line."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec

from blade_llm.check.ranks.all_reduce import Measured
from blade_protocol.check import CheckItem

MAX_LINE_BYTES: Final = 64 << 10
"""Of a message; the longest has all items."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello", forbid_unknown_fields=True):
    """A machine → machine 0: its first message."""

    node_rank: int
    nnodes: int
    host: str
    """Name of the machine, or of its pod."""
    instance: str
    """Of this process, at random."""
    blade_llm: str
    torch: str
    gpus: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Machine 0 → a machine: what time is it?"""


class Pong(msgspec.Struct, frozen=True, kw_only=True, tag="pong"):
    """A machine → machine 0."""

    time: float
    """Seconds since the epoch by its clock."""


class Measure(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """Machine 0 → all: measure an all-reduce, as rank ``node_rank`` of ``nnodes``."""

    address: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True, tag="verdict"):
    """Machine 0 → a machine: its last message."""

    items: tuple[CheckItem, ...]


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Machine 0 → a machine that does not belong to the others."""

    problem: str


class Result(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """A machine → machine 0: what it has measured."""

    measured: Measured


HELLO: Final = msgspec.json.Decoder(Hello)
PONG: Final = msgspec.json.Decoder(Pong)
RESULT: Final = msgspec.json.Decoder(Result)
FROM_LEADER: Final = msgspec.json.Decoder[Ping | Measure | Verdict | Refused](Ping | Measure | Verdict | Refused)
TO_LEADER_ITSELF: Final = msgspec.json.Decoder[Pong | Refused](Pong | Refused)
"""What machine 0 answers to who has its number: itself, or a second machine 0."""
_Message = TypeVar("_Message")


class StrangeMessageError(Exception):
    """The other side does not speak this protocol."""


async def receive(reader: asyncio.StreamReader, decoder: msgspec.json.Decoder[_Message], seconds: float) -> _Message:
    """The next message, which must be what ``decoder`` takes.

    Raises TimeoutError, ConnectionError for an end of the stream, :class:`StrangeMessageError` for all else.
    """
    try:
        line = await asyncio.wait_for(reader.readline(), seconds)
    except ValueError:
        raise StrangeMessageError("a line that does not end") from None
    if not line.endswith(b"\n"):
        raise ConnectionResetError("the other side closed the connection")
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        raise StrangeMessageError(str(error)) from None


async def send(writer: asyncio.StreamWriter, message: msgspec.Struct, seconds: float) -> None:
    """Raises TimeoutError where the other side does not read, and OSError."""
    writer.write(msgspec.json.encode(message) + b"\n")
    await asyncio.wait_for(writer.drain(), seconds)
