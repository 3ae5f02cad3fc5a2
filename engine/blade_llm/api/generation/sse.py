"""Server-sent events as a bare ASGI response, and running a request until the client disconnects.

The status line waits for the engine's first output: until then an engine that dies gives a proper 503, which a router
may retry elsewhere. Only where that takes so long that a comment has to keep the connection alive
(:mod:`blade_llm.api.common.comments`) does it go out before, and an error that follows is an event. A client that
disconnects closes its generation at once, streaming or not.

A stream's task sleeps while events flow: they are made and sent where the engine's message arrives. ``send`` is a
coroutine that waits only for a connection whose buffers are full; then the task wakes, waits in its place, and what the
engine brings meanwhile leaves as one event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import types
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from typing import Any, Final, Protocol

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from blade_llm.api.common.comments import COMMENT, SCOPE_KEY, StreamComments
from blade_llm.api.common.errors import CLIENT_CLOSED_REQUEST, ApiError, as_api_error
from blade_llm.engine.client import Generation, GenerationClosedError, Outputs

DONE: Final = b"data: [DONE]\n\n"
_log = logging.getLogger(__name__)


class ClientLeftError(GenerationClosedError):
    """The client closed its connection."""


@contextlib.contextmanager
def closing_on_disconnect(generation: Generation, receive: Receive) -> Iterator[None]:
    """Watch the connection meanwhile; close ``generation`` on leaving, however that happens."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.close(ClientLeftError("the client left"))

    watcher = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watcher.cancel()
        generation.close()


async def run_unary(generation: Generation, receive: Receive, response: Awaitable[Response]) -> Response:
    """Await ``response`` while watching the connection."""
    with closing_on_disconnect(generation, receive):
        try:
            return await response
        except ClientLeftError as error:
            return ApiError(CLIENT_CLOSED_REQUEST, str(error)).response()


class Events(Protocol):
    """Turns one request's outputs into the bytes of its stream."""

    @property
    def finished(self) -> bool:
        """All that remains is :meth:`end`."""

    def add(self, outputs: Outputs) -> bytes:
        """Whole ``data: …`` blocks, perhaps none."""

    def end(self) -> bytes:
        """What ends the stream."""

    def failed(self, error: ApiError) -> bytes:
        """What ends a stream that has begun and cannot go on."""

    def close(self) -> None:
        """The stream is over, however that came."""


class EventStream(Response):
    """Streams ``events``; an error after the first one becomes an event of its own.

    Args:
        late_headers: makes those that depend on the first output; such a stream gets no comment before.
        settled: awaited before the bytes that end the stream go out; these are made before.
    """

    def __init__(
        self,
        events: Events,
        generation: Generation,
        late_headers: Callable[[], Mapping[str, str]] | None = None,
        settled: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._events = events
        self._generation = generation
        self._late_headers = late_headers
        self._settled = settled
        self._blocked: tuple[Generator[Any, Any, None], object] | None = None
        """A send that began where the engine's message arrived, and what it waits for."""
        self.num_sent = 0
        self._started = False
        self._busy = False
        """Its task is sending, and may wait in the middle of that."""
        self._send: Send

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        comments: StreamComments | None = scope.get(SCOPE_KEY) if self._late_headers is None else None
        if comments is not None:
            comments.watch(self)
        try:
            await self._run(scope, receive, send)
        finally:
            if comments is not None:
                comments.leave(self)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        with closing_on_disconnect(self._generation, receive):
            try:
                data = b""
                while not data and not self._events.finished:
                    data = self._events.add(await self._generation.get())
                self._busy = True
                if self._late_headers is not None:
                    self.headers.update(self._late_headers())
                await self._begin(send)
                await send(_body(data))
                self._busy = False
                while not self._events.finished:
                    await self._forward(send)
                self._busy = True
                data = self._events.end()
                if self._settled is not None:
                    await self._settled()
                await send(_body(data))
            except ClientLeftError:
                return
            except Exception as error:
                response = as_api_error(error)
                if response.status == 500:
                    _log.exception("streaming failed")
                self._busy = True
                if not self._started:
                    await response.response()(scope, receive, send)
                    return
                await send(_body(self._events.failed(response)))
            finally:
                self._events.close()
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _begin(self, send: Send) -> None:
        if not self._started:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            self._started = True

    def comment(self) -> None:
        """Send a comment, with the status line where nothing has been sent yet; not while the connection takes nothing,
        or in the middle of something else."""
        if self._busy or self._blocked is not None:
            return
        sending = self._send_comment()
        with contextlib.suppress(StopIteration):
            sending.send(None)
        sending.close()  # where it had to wait nothing of it was written

    async def _send_comment(self) -> None:
        await self._begin(self._send)
        await self._send(_body(COMMENT))

    async def _forward(self, send: Send) -> None:
        """Send events as outputs come, until the stream is finished or the connection takes no more for now."""

        def take(outputs: Outputs) -> bool:
            data = self._events.add(outputs)
            if data:
                self.num_sent += 1
                sending = send(_body(data)).__await__()
                try:
                    self._blocked = (sending, next(sending))
                except StopIteration:
                    pass
                else:
                    return False
            return not self._events.finished

        await self._generation.forward(take)
        if self._blocked is not None:
            blocked, self._blocked = self._blocked, None
            await _resume(*blocked)


@types.coroutine
def _resume(sending: Generator[Any, Any, None], waits_for: object) -> Generator[Any, Any, None]:
    """Go on with an awaitable that was begun outside this task and waits for the future ``waits_for``."""
    yield waits_for
    yield from sending


def _body(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}


def sse_event(data: bytes) -> bytes:
    """One event holding ``data`` (JSON, so without line breaks)."""
    return b"data: " + data + b"\n\n"
