"""One copy of a request: sent, read to its end, and compared with the original."""

import asyncio
import logging
from collections.abc import Callable
from time import perf_counter
from typing import Final

from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.retry_budget import DRAINING
from blade_router.http.errors import header_of
from blade_router.http.upstream.connection import Connection
from blade_router.http.upstream.errors import ConnectFailed, Stalled, UpstreamError
from blade_router.proxy.shadow_text import is_greedy, same_text
from blade_router.request.read_usage import TAIL, usage_of, usage_of_stream
from blade_router.resume.stream import EventStream
from blade_router.statistics.answer import Answer
from blade_router.statistics.shadow import ShadowCounts

logger = logging.getLogger("blade_router.proxy")

MAX_READ: Final = 16 << 20
"""Bytes of an answer that are read."""
MAX_SECONDS: Final = 600.0
"""From the beginning of a copy to the end of the comparison."""
LEAST_GRACE: Final = 30.0
GRACE: Final = 3.0
"""A copy may take so many times as long again as the original took, and ``LEAST_GRACE`` seconds at least: a revision
that hangs fails its requests."""
LONGER: Final = 4
"""Times as long: an answer of more than ``MAX_READ`` bytes beside a shorter one has failed."""


class ShadowCopy:
    """A copy under way.

    Args:
        counts: where it is counted.
        endpoint: the engine that gets it.
        head, body: what is sent.
    """

    __slots__ = (
        *("_body", "_connection", "_counts", "_dropped", "_ended", "_first_byte_timeout", "_head", "_late"),
        *("_original_over", "_stall_timeout", "answer", "endpoint", "original", "task"),
    )

    def __init__(
        self,
        counts: ShadowCounts,
        endpoint: Endpoint,
        head: bytes,
        body: bytes,
        first_byte_timeout: float,
        stall_timeout: float,
    ) -> None:
        self._counts = counts
        self.endpoint = endpoint
        self._head = head
        self._body = body
        self._first_byte_timeout = first_byte_timeout
        self._stall_timeout = stall_timeout
        self.original = Answer(self._original_closed)
        """The other answer: whoever sends it to the client keeps it here."""
        self.answer = Answer()
        self.task: asyncio.Task[None] | None = None
        self._dropped = ""
        """Why nothing can be compared."""
        self._connection: Connection | None = None
        self._late: asyncio.TimerHandle | None = None
        self._original_over: asyncio.Future[None] | None = None
        self._ended: Callable[[ShadowCopy], None] | None = None

    def start(self, ended: Callable[["ShadowCopy"], None]) -> None:
        """Begin, once the running task waits for something: the original is on its way then.

        ``ended``: called at the end, however it comes.
        """
        loop = asyncio.get_running_loop()
        self._original_over = loop.create_future()
        self._ended = ended
        self.task = loop.create_task(self._run(), name="shadow")
        self.task.add_done_callback(self._done)

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(MAX_SECONDS):
                await self._exchange()
                if self._original_over is not None:
                    await self._original_over
                await self._compare()
        except TimeoutError:
            self._counts.dropped("slow")

    async def _exchange(self) -> None:
        """Send it, and read the answer."""
        self.answer.sent = perf_counter()
        try:
            connection = await self.endpoint.pool.exchange(
                self._head, self._body, self._attach, self._first_byte_timeout, self._stall_timeout
            )
            await self._read(connection)
        except UpstreamError as error:
            if isinstance(error, ConnectFailed) and not error.sent:
                self._dropped = "no_engine"
            else:
                self.answer.fail()
        self._release()

    async def _read(self, connection: Connection) -> None:
        """Raises:
        UpstreamError: it broke off.
        """
        headers = connection.headers
        streamed = header_of(headers, b"content-type").lower().startswith(b"text/event-stream")
        events = EventStream() if streamed and not header_of(headers, b"content-encoding") else None
        answer, tail, number, answered = self.answer, b"", 0, 0.0
        while chunk := await connection.read():
            if not answered:
                answered = perf_counter()
            if events is None:
                tail = (tail + chunk)[-TAIL:]
            else:
                chunk = events.feed(chunk)
                number += events.count
            answer.keep(chunk)
            if answer.size > MAX_READ:
                self._dropped = "large"
                return
        status = connection.status
        if DRAINING in headers or status in (401, 429):
            self._dropped = "refused"  # by an engine that leaves, is full, or waits for the router's token
        elif status >= 300:
            answer.fail()
        elif events is not None:
            usage = usage_of_stream(events.last)
            tokens = usage.completion_tokens if usage is not None else number
            answer.succeed(answered, perf_counter(), True, tokens, events.last[-TAIL:])
        elif answer.whole:
            usage = usage_of(answer.kept)
            answer.succeed(answered, perf_counter(), False, usage.completion_tokens if usage is not None else 0, tail)
        else:
            self._dropped = "large"

    async def _compare(self) -> None:
        """Both have ended."""
        copy, original = self.answer, self.original
        if copy.size > MAX_READ and original.size * LONGER < MAX_READ:
            copy.fail()
        if not copy.known:
            self._counts.dropped(self._dropped)
            return
        self._counts.compared(copy, original)
        if not copy.failed and not original.failed and is_greedy(self._body):
            same = await same_text(copy, original)
            if same is not None:
                self._counts.greedy(same)

    def _attach(self, connection: Connection) -> None:
        """The pool is about to use this connection."""
        self._connection = connection

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self.endpoint.pool.release(connection)

    def _original_closed(self) -> None:
        """The request has ended. Without an answer that counts, as when its client left, nothing can be compared."""
        if self.task is None or self.task.done():
            return
        if not self.original.known:
            self._counts.dropped("original")
            self.task.cancel()
            return
        if self._original_over is not None and not self._original_over.done():
            self._original_over.set_result(None)
        grace = max(LEAST_GRACE, GRACE * (self.original.ended - self.original.sent))
        self._late = asyncio.get_running_loop().call_later(grace, self._too_late)

    def _too_late(self) -> None:
        if self._connection is not None:
            self._connection.abort(Stalled("the answer to a copy took far longer than that to the original"))

    def _done(self, task: asyncio.Task[None]) -> None:
        """The task has ended, perhaps before it began."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a copy of a request could not be compared", exc_info=error)
        self._release()
        if self._late is not None:
            self._late.cancel()
        self.original.forget()
        if self._ended is not None:
            self._ended(self)
            self._ended = None
