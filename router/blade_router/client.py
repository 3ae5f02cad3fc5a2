"""The client's side of one request: writing the answer, and noticing at once when nobody reads it any more.

An engine that goes on generating for a client that left wastes its time, so the connection to the engine is aborted
the moment the client's goes, whether the answer streams or not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any, Protocol

from blade_router.errors import ClientGone, Headers
from blade_router.request import Receive

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Abortable(Protocol):
    """What a client's leaving puts an end to."""

    def abort(self, error: Exception) -> None: ...


class Client:
    """One ASGI request's ``receive`` and ``send``. Writing waits while the client is slow."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._gone = False
        self._work: Abortable | None = None
        self._kept_alive = False
        self._late_status = 0
        self._receiving: Generator[Any, None, MutableMapping[str, Any]]

    def watch(self) -> None:
        """Start to look for the disconnect; only after the request has been read. Ends with the answer by itself.

        ``receive`` is stepped by hand, as a task would do it: a task per request only to wait costs 10 us.
        """
        self._receiving = self._receive().__await__()
        self._step()

    def _step(self, done: asyncio.Future[None] | None = None) -> None:
        try:
            waiting = next(self._receiving)
        except StopIteration as stop:
            if stop.value["type"] == "http.disconnect":
                self._gone = True
                if self._work is not None:
                    self._work.abort(ClientGone())
            else:
                self.watch()
            return
        # The protocol between a coroutine and what runs it: the runner takes the flag down, then waits.
        waiting._asyncio_future_blocking = False
        waiting.add_done_callback(self._step)

    def attach(self, work: Abortable) -> None:
        """Abort this with ``ClientGone`` when the client goes.

        Raises:
            ClientGone: it has gone already.
        """
        if self._gone:
            raise ClientGone
        self._work = work

    def detach(self) -> None:
        """What was attached is another's from now on."""
        self._work = None

    async def heartbeat(self, comment: bytes) -> None:
        """Write a comment into an event stream that has not begun; the first one begins it, with a 200.

        What comes later keeps the 200: an error's body is sent as an event.
        """
        if not self._kept_alive:
            self._kept_alive = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": b": %b\n\n" % comment, "more_body": True})

    # The three below hand on the server's own awaitable: a coroutine around each would cost, and add nothing.

    def start(self, status: int, headers: Headers) -> Awaitable[None]:
        if self._kept_alive:
            self._late_status = status
            return _nothing()
        return self._send({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, body: bytes) -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": body, "more_body": True})

    def finish(self, body: bytes = b"") -> Awaitable[None]:
        if self._late_status >= 400:
            body = b"data: %b\n\n" % body.replace(b"\n", b" ")
        return self._send({"type": "http.response.body", "body": body})


async def _nothing() -> None:
    pass
