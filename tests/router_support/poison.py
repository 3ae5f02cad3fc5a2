"""Engines that a poisonous request kills."""

import contextlib
from collections.abc import AsyncIterator

import httpx

from router_support.engine import MockEngine

POISON = b"poison"


@contextlib.asynccontextmanager
async def fleet(count: int = 4, *, resumable: bool = False, **fields: object) -> AsyncIterator[list[MockEngine]]:
    async with contextlib.AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(MockEngine(name, poison=POISON, resumable=resumable, **fields))  # type: ignore[arg-type]
            for name in "abcdefgh"[:count]
        ]
        yield engines


def crashes(engines: list[MockEngine]) -> int:
    return sum(engine.crashes for engine in engines)


def code(answered: httpx.Response) -> tuple[int, str]:
    return answered.status_code, answered.json()["error"]["code"]
