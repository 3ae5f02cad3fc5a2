"""One HTTP/1.1 connection, written on asyncio's transports.

A general client costs a millisecond of CPU a request and some ten microseconds an event, more than a fast server does;
then one would measure the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import httptools


class Reply(Protocol):
    """Takes a response as it comes in. Must not raise."""

    def begin(self, status: int, content_type: str) -> None:
        """The head."""

    def feed(self, data: bytes, now: float) -> None:
        """A piece of the body, and when it arrived."""


class ConnectionBroken(Exception):
    """The response did not end as it should.

    ``untouched``: not even its first byte had arrived, so that a request on a reused connection may be sent again.
    """

    def __init__(self, message: str, *, untouched: bool) -> None:
        super().__init__(message)
        self.untouched = untouched


class Connection(asyncio.Protocol):
    """Exchanges one request for one response at a time; made by ``loop.create_connection``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.reused = False
        self._clock = clock
        self._now = 0.0
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._reply: Reply | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._content_type = ""
        self._begun = False
        self._ends_with_connection = True

    @property
    def usable(self) -> bool:
        """Whether another request may be sent on it."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, reply: Reply) -> None:
        """Send ``request`` and feed ``reply`` until the response is complete. Raises :class:`ConnectionBroken`.

        A cancelled exchange closes the connection, by which servers notice that the client is gone.
        """
        if self._transport is None or not self.usable:
            raise ConnectionBroken("closed by the server", untouched=True)
        self._reply = reply
        self._begun, self._ends_with_connection, self._content_type = False, True, ""
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._waiter
        except BaseException:
            self.close()
            raise
        finally:
            self._waiter = self._reply = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._now = self._clock()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"not HTTP: {error}")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._begun and self._ends_with_connection and error is None:
            self._finish()
        else:
            self._fail(str(error or "connection closed"))

    # What httptools calls.

    def on_message_begin(self) -> None:
        self._begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False
        elif name == b"content-type":
            self._content_type = value.decode("latin-1").lower()

    def on_headers_complete(self) -> None:
        if self._reply is not None:
            self._reply.begin(self._parser.get_status_code(), self._content_type)

    def on_body(self, data: bytes) -> None:
        if self._reply is not None:
            self._reply.feed(data, self._now)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive() and self._transport is not None:
            self._transport.close()
        self.reused = True
        self._finish()

    def _finish(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, message: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionBroken(message, untouched=not self._begun))
