"""Server-sent events as a bare ASGI response, and running an answer until the client leaves.

The status line waits for the engine's first output: until then an engine that dies gives a proper 503, which a router
may retry elsewhere. A client that disconnects closes its generation at once, streaming or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from blade_llm.api.errors import CLIENT_CLOSED_REQUEST, ApiError, as_api_error
from blade_llm.engine.client import Generation, GenerationClosedError

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


async def run_unary(generation: Generation, receive: Receive, answer: Awaitable[Response]) -> Response:
    """Await ``answer`` while watching the connection."""
    with closing_on_disconnect(generation, receive):
        try:
            return await answer
        except ClientLeftError as error:
            return ApiError(CLIENT_CLOSED_REQUEST, str(error)).response()


class EventStream(Response):
    """Streams ``events`` (encoded ``data: …`` blocks); an error after the first one becomes an event of its own."""

    def __init__(self, events: Callable[[], AsyncIterator[bytes]], generation: Generation) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self._events = events
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        with closing_on_disconnect(self._generation, receive):
            try:
                async for event in self._events():
                    if not started:
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                        started = True
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except ClientLeftError:
                return
            except Exception as error:
                answer = as_api_error(error)
                if answer.status == 500:
                    _log.exception("streaming failed")
                if not started:
                    await answer.response()(scope, receive, send)
                    return
                await send({"type": "http.response.body", "body": sse_event(answer.body()), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def sse_event(data: bytes) -> bytes:
    """One event holding ``data`` (JSON, so without line breaks)."""
    return b"data: " + data + b"\n\n"
