"""What belongs to the HTTP request that is being handled: its connection, and what was made of it and may be needed
again before the engine has it.

A context variable, as :mod:`~blade_llm.api.common.response_notes`: whatever reads a part of a body, at any depth, finds
it there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.types import Receive

from blade_llm.api.common.errors import CLIENT_CLOSED_REQUEST, ApiError

_Result = TypeVar("_Result")


@dataclass
class RequestScope:
    """One request."""

    receive: Receive
    kept: dict[Hashable, Any] = field(default_factory=dict)
    """Costly parts of its prompt, by what they were made of."""


_current: ContextVar[RequestScope | None] = ContextVar("request_scope", default=None)


@contextlib.contextmanager
def request_scope(receive: Receive) -> Iterator[None]:
    """The scope of the request that is handled inside. ``receive``: of its connection."""
    scope = RequestScope(receive)
    token = _current.set(scope)
    try:
        yield
    finally:
        _current.reset(token)
        scope.kept.clear()


def kept_parts() -> dict[Hashable, Any]:
    """What is kept of the request, to be added to; outside of one nothing is."""
    scope = _current.get()
    return {} if scope is None else scope.kept


def forget_parts() -> None:
    """Keep nothing more of the request: the engine has its prompt."""
    kept_parts().clear()


async def while_connected(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Await ``work``, and cancel it once the client has left: then :class:`ApiError` 499. Its body has been read."""
    scope = _current.get()
    if scope is None:
        return await work
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(scope.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ApiError(CLIENT_CLOSED_REQUEST, "the client left")
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
