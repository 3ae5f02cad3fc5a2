"""A closed-loop load generator on bare sockets: each caller waits for its response, checks it, and sends another."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import httptools

from benchmarks.router.engines import QUESTION

TIMEOUT = 10.0
"""Seconds a client waits for a response, or for the next event of one."""
_EVENT = re.compile(rb"q=(\d{9}) i=(\d{6}) t=\d{16}")
_STAMP = re.compile(rb" t=(\d{16})")
_BODY = b'{"model":"mock","messages":[{"role":"user","content":"%b %b"}],"stream":%b,"max_tokens":%d}'
_CODE = re.compile(rb'"code":"(\w+)"')
_TOTAL = re.compile(rb'"total_tokens":(\d+)')
_questions = itertools.count()


class Wrong(Exception):
    """A client got something else than its complete response. The first argument says what, in a word or two."""


def request(text: str, *, stream: bool = False, tokens: int = 16, key: str = "none") -> tuple[bytes, bytes]:
    """A chat request for that prompt (letters, digits, spaces), and the question its response must repeat."""
    question = b"%b%09d" % (QUESTION, next(_questions))
    body = _BODY % (text.encode("ascii"), question, b"true" if stream else b"false", tokens)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\naccept: */*\r\n"
        b"user-agent: bench\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n" % (key.encode(), len(body))
    )
    return head + body, question


class Caller(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.loop = asyncio.get_running_loop()
        self.parser = httptools.HttpResponseParser(self)
        self.parts: list[bytes] = []
        self.first = 0.0
        self.relays: list[float] | None = None
        """When set: seconds from an event's writing to its reading are added."""
        self.closed = False
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.relays is not None:
            now = time.perf_counter_ns()
            stamps = _STAMP.findall(data)
            if stamps:
                self.relays.append((now - int(stamps[-1])) * 1e-9)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.fail("not HTTP")
            self.transport.abort()

    def on_body(self, body: bytes) -> None:
        if not self.parts:
            self.first = time.perf_counter()
        self.parts.append(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_keep_alive():
            self.closed = True
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.fail("connection closed")

    def fail(self, why: str) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(Wrong(why))

    async def request(self, data: bytes, question: bytes, timeout: float = TIMEOUT) -> bytes:
        """The response's body, checked to be whole and the one to this question.

        Raises:
            Wrong: it is not, or did not come within ``timeout`` seconds.
        """
        self.parts = []
        self.parser = httptools.HttpResponseParser(self)
        self.done = self.loop.create_future()
        timer = self.loop.call_later(timeout, self.fail, "no response in time")
        self.transport.write(data)
        try:
            await self.done
        except Wrong:
            self.transport.abort()
            raise
        finally:
            timer.cancel()
        body = b"".join(self.parts)
        status = self.parser.get_status_code()
        if status != 200:
            code = _CODE.search(body)
            raise Wrong(f"status {status} {code[1].decode()}" if code else f"status {status}")
        if question not in body:
            raise Wrong("another request's response")
        return body


async def open_caller(port: int) -> Caller:
    return (await asyncio.get_running_loop().create_connection(Caller, "127.0.0.1", port))[1]


@contextlib.asynccontextmanager
async def callers(port: int, count: int) -> AsyncIterator[list[Caller]]:
    """That many open connections, closed afterwards."""
    opened = [await open_caller(port) for _ in range(count)]
    try:
        yield opened
    finally:
        for caller in opened:
            caller.transport.abort()


def whole_stream(body: bytes, question: bytes, tokens: int) -> bool:
    """Every event of the stream is there once, in order, and it ends as it should."""
    events = _EVENT.findall(body)
    number = question.removeprefix(QUESTION)
    return (
        len(events) == tokens
        and all(received == number and int(index) == place for place, (received, index) in enumerate(events))
        and body.endswith(b"data: [DONE]\n\n")
        and b'"error"' not in body
    )


def whole_response(body: bytes, tokens: int) -> bool:
    """All words of a unary response are there."""
    return b" word" * tokens + b'"' in body


async def latency(port: int, count: int, text: str) -> tuple[float, float]:
    """Median and 99th percentile, in ms, of one request at a time."""
    times = []
    async with callers(port, 1) as [caller]:
        for number in range(count + 20):
            data, question = request(text)
            start = time.perf_counter()
            await caller.request(data, question)
            if number >= 20:
                times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times), percentile(times, 0.99)


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


@dataclass
class Outcome:
    """What a crowd of callers got."""

    done: int = 0
    tokens: int = 0
    """Prompt and completion tokens, as the responses' usage says."""
    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    """Seconds of each request, failed ones included."""
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        return self.done / self.seconds


async def crowd(
    port: int,
    count: int,
    prompts: Callable[[], str],
    *,
    seconds: float = 0.0,
    requests: int = 0,
    key: str = "none",
    stream: bool = False,
    tokens: int = 16,
    warm: float = 0.0,
) -> Outcome:
    """``count`` callers for that many seconds, or until that many requests are done. Errors are counted, not raised.

    A caller whose connection has ended opens another. With ``warm``, responses of the first that many seconds are not
    counted, nor those that come after the end: who has many requests in flight would have many of them.
    """
    outcome = Outcome()
    started = time.perf_counter()
    end = started + seconds if seconds else float("inf")
    counted = started + warm
    tickets: Iterator[int] = iter(range(requests)) if requests else itertools.count()

    async def work() -> None:
        caller = await open_caller(port)
        for _ in tickets:
            begin = time.perf_counter()
            if begin >= end:
                break
            try:
                if caller.closed:
                    caller = await open_caller(port)
                data, question = request(prompts(), stream=stream, tokens=tokens, key=key)
                body = await caller.request(data, question)
                if not (whole_stream(body, question, tokens) if stream else whole_response(body, tokens)):
                    raise Wrong("error event" if b'"error"' in body else "incomplete")
                if warm and not counted <= time.perf_counter() <= end:
                    continue
                outcome.done += 1
                outcome.tokens += int(_TOTAL.findall(body)[-1])
            except (Wrong, OSError) as error:
                outcome.errors[str(error)] += 1
                await asyncio.sleep(0.01)
            outcome.times.append(time.perf_counter() - begin)
        caller.transport.abort()

    await asyncio.gather(*(work() for _ in range(count)))
    outcome.seconds = (end if warm else time.perf_counter()) - counted
    return outcome


def right(outcome: Outcome) -> Outcome:
    """The same, if every response was right.

    Raises:
        Wrong: one was not.
    """
    if outcome.errors:
        raise Wrong(f"wrong responses: {dict(outcome.errors)}")
    return outcome


@dataclass
class Streams:
    """What many streams at once were like."""

    ttft: list[float]
    """Seconds from the request to the first event, less what the engine took."""
    relays: list[float]
    """Seconds from an event's writing to its reading."""
    tokens: int
    seconds: float
    """Time from the first stream's first event to the last one's end."""


async def streams(port: int, count: int, tokens: int, interval: float) -> Streams:
    """``count`` streams of ``tokens`` events, one each ``interval`` seconds, begun within one interval. All checked.

    Raises:
        Wrong: one was not whole.
    """
    firsts: list[float] = []
    result = Streams([], [], count * tokens, 0.0)
    responses: list[tuple[bytes, bytes]] = []

    async def one(place: int, caller: Caller) -> None:
        caller.relays = result.relays
        await asyncio.sleep(interval * place / count)
        data, question = request("x" * 2000, stream=True, tokens=tokens)
        start = time.perf_counter()
        responses.append((await caller.request(data, question, TIMEOUT + tokens * interval), question))
        firsts.append(caller.first)
        result.ttft.append(caller.first - start - interval)

    async with callers(port, count) as opened:
        await asyncio.gather(*(one(place, caller) for place, caller in enumerate(opened)))
        result.seconds = time.perf_counter() - min(firsts)
    for body, question in responses:  # after the clock has stopped: it takes long
        if not whole_stream(body, question, tokens):
            raise Wrong("a stream is incomplete")
    return result
