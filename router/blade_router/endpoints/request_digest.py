"""The number that stands for a request, in all processes, wherever equal ones have to be recognised."""

import asyncio
from hashlib import blake2b
from typing import Final, Protocol

HASHED_AT_ONCE: Final = 1 << 20
"""Bytes of a body that are hashed in one go: a millisecond or two."""


class Request(Protocol):
    """What makes two requests the same, together with their key."""

    @property
    def path(self) -> str: ...

    @property
    def body(self) -> bytes: ...


def digest(request: Request, key: str) -> int:
    """The number of a request."""
    hashed = blake2b(f"{request.path}\0{key}\0".encode(), digest_size=8)
    hashed.update(request.body)
    return int.from_bytes(hashed.digest(), "little", signed=True)


async def digest_async(request: Request, key: str) -> int:
    """The same; of a large body a thread computes it. An engine that dies takes many along, and the event loop would
    be held for all of them together."""
    if len(request.body) <= HASHED_AT_ONCE:
        return digest(request, key)
    return await asyncio.to_thread(digest, request, key)
