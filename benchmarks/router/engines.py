"""A fleet of mock engines: OpenAI's API, a prefix cache, and every way to fail, at a few microseconds a request.

All of them live in the benchmark's own event loop, beside the load generator. Each response repeats the number that its
request ends with, so that the generator can distinguish its own response from another's; each event of a stream says
when it was written.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Literal, cast

import httptools
import msgspec

from benchmarks.router import known_routes
from benchmarks.router.kv_events import HEADER, KvEventPublisher, hashes_header
from benchmarks.router.load_reports import LoadReporter

RESUME = b"/internal/resume"
IDS = b"x-blade-stream-ids"

Mode = Literal["ok", "500", "503", "reset", "hang"]
BLOCK = 256
"""Characters of a prompt that are cached together."""
QUESTION = b"q="
"""What a prompt ends with: this, and nine digits."""
QUESTION_SIZE = 11

_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n%b\r\n"
_RESUMABLE = b"x-request-id: r\r\nx-blade-created: 1\r\nx-blade-seed: 1\r\nx-blade-prompt-digest: same\r\n"
_START = b'{"id":"chatcmpl-0","object":"chat.completion%b","created":1,"model":"mock","choices":[{"index":0,'
_UNARY = _START % b"" + b'"message":{"role":"assistant","content":"%b %b%b"},"finish_reason":"stop"}],"usage":%b}'
_EVENT = b"data: " + _START % b".chunk" + b'"delta":{"content":"%b i=%06d t=%016d "},"finish_reason":null}]}\n\n'
_LAST = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1,"model":"mock","choices":[],'
    b'"usage":%b}\n\ndata: [DONE]\n\n'
)
_USAGE = b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d%b}'
_CACHED = b',"prompt_tokens_details":{"cached_tokens":%d}'


class _Message(msgspec.Struct):
    content: str = ""


class _Body(msgspec.Struct):
    messages: list[_Message] = []
    stream: bool = False
    max_tokens: int = 0
    max_completion_tokens: int = 0
    request: _Body | None = None
    """The original request, when this one resumes its stream, ..."""
    token_ids: list[list[int]] = []
    """... after these: an event's id is its number."""


_decode = msgspec.json.Decoder(_Body).decode


@dataclass
class Engine:
    """One mock engine; change any field while it runs."""

    name: str
    mode: Mode = "ok"
    unwell: bool = False
    """``mode`` also counts for the health routes."""
    tokens: int = 16
    """Tokens of a response whose request does not say how many; the request's own number otherwise."""
    delay: float = 0.0
    """Seconds of decoding before a unary response."""
    interval: float = 0.0
    """Seconds between the events of a stream."""
    cache_blocks: int = 0
    """Blocks the prefix cache holds; 0: there is none, and prompts are not parsed."""
    block_seconds: float = 0.0
    """Prefill of one block that is not cached."""
    serial: bool = False
    """One prefill at a time: the others queue."""
    slots: int = 0
    """Requests that run at the same time, the others wait in turn; 0: all of them."""
    poison: bytes = b""
    """A request with this in its body crashes the engine, ..."""
    restart_seconds: float = 0.5
    """... which is back after that long."""
    publisher: KvEventPublisher | LoadReporter | None = None
    """Publishes KV events or the load to routers; without one they get ``cached_tokens`` only."""
    says_cached: bool = True
    """Its usage has ``cached_tokens``."""
    token_size: int = 4
    """Characters it counts as a token in ``prompt_tokens``; ``cached_tokens`` always go by 4."""
    port: int = 0
    requests: int = 0
    active: int = 0
    by_key: Counter[bytes] = field(default_factory=Counter)
    """Requests by their ``authorization``."""
    aborted: list[float] = field(default_factory=list)
    """When the other side closed a connection whose response was incomplete (``time.perf_counter``)."""
    hits: int = 0
    blocks: int = 0
    groups: set[bytes] = field(default_factory=set)
    """First bytes of the prompts it got."""
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    connections: set[_Connection] = field(default_factory=set)
    waiting: deque[_Connection] = field(default_factory=deque)
    """Those whose requests wait for a slot."""
    crashes: int = 0
    _free_at: float = 0.0
    _server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen; on the same port as before."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port, backlog=4096)
        self.port = self._server.sockets[0].getsockname()[1]

    def kill(self) -> None:
        """The port closes and every connection breaks, as with ``kill -9``; what it had cached is gone."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.cut()
        self.cache.clear()

    def crash(self) -> None:
        """Be killed, and back after ``restart_seconds``."""
        if self._server is None:
            return
        self.crashes += 1
        self.kill()
        loop = asyncio.get_running_loop()
        loop.call_later(self.restart_seconds, lambda: loop.create_task(self.start()))

    @property
    def running(self) -> int:
        """Requests that have a slot."""
        return self.active - len(self.waiting)

    def load(self) -> tuple[int, int, int]:
        """How many requests run, how many wait, and how many can run."""
        return self.running, len(self.waiting), self.slots

    def forget(self) -> None:
        """Empty cache and counters."""
        self.cache.clear()
        self.groups.clear()
        self.by_key.clear()
        self.requests = self.hits = self.blocks = 0
        self.aborted.clear()
        self._free_at = 0.0

    def prefill(self, text: str) -> tuple[float, int, list[int]]:
        """Seconds until the first token of this prompt, how many of its tokens were cached, and its blocks."""
        chain: list[int] = []
        missing: list[int] = []
        hits = block = 0
        for start in range(0, len(text) - BLOCK + 1, BLOCK):
            block = hash((block, text[start : start + BLOCK]))
            chain.append(block)
            if block not in self.cache:
                missing.append(block)
                self.cache[block] = None
            else:
                self.cache.move_to_end(block)
                hits += not missing
        removed = [self.cache.popitem(last=False)[0] for _ in range(len(self.cache) - self.cache_blocks)]
        if isinstance(self.publisher, KvEventPublisher):
            self.publisher.change(missing, removed)
        self.hits += hits
        self.blocks += len(chain)
        seconds = (len(chain) - hits) * self.block_seconds
        if self.serial:
            now = time.perf_counter()
            self._free_at = max(now, self._free_at) + seconds
            seconds = self._free_at - now
        return seconds, hits * BLOCK // 4, chain


class _Connection(asyncio.Protocol):
    """One connection of a router to an engine; one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.parser = httptools.HttpRequestParser(self)
        self.transport: asyncio.Transport
        self.timer: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()
        self.target = b""
        self.key = b""
        self.parts: list[bytes] = []
        self.busy = self.ours = self.ids = False
        self.question = b""
        self.begin: Callable[[], None] | None = None
        """What starts the response once there is a slot; None: it has one."""
        self.hashes_wanted = self.ids_wanted = False
        self.extra = b""
        self.cached = self.prompt = self.tokens = self.index = 0
        self.next = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.engine.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.connections.discard(self)
        if self.timer is not None:
            self.timer.cancel()
        if self.busy:
            self._finish()
            if not self.ours:
                self.engine.aborted.append(time.perf_counter())

    def cut(self) -> None:
        self.ours = True
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.cut()

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"authorization":
            self.key = value
        elif name == HEADER:
            self.hashes_wanted = True
        elif name == IDS:
            self.ids_wanted = True

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        target, self.target = self.target, b""
        body = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.parts = []
        engine = self.engine
        generates = self.parser.get_method() == b"POST" and (target in known_routes.GENERATING or target == RESUME)
        if engine.mode != "ok" and (generates or engine.unwell):
            self._fail(engine.mode)
        elif generates and engine.poison and engine.poison in body:
            engine.crash()
        elif generates:
            self._generate(body)
        elif engine.publisher is None or not engine.publisher.respond(target, self.transport):
            self.transport.write(known_routes.respond(target, body))

    def _fail(self, mode: Mode) -> None:
        self.engine.requests += 1
        if mode == "reset":
            self.cut()
        elif mode != "hang":
            body = b'{"error":{"message":"mock","type":"server_error","param":null,"code":null}}'
            self.transport.write(known_routes.response(int(mode), body))

    def _generate(self, body: bytes) -> None:
        engine = self.engine
        engine.requests += 1
        engine.active += 1
        self.busy = True
        if self.key:
            engine.by_key[self.key] += 1
        start = body.rfind(QUESTION)
        self.question = body[start : start + QUESTION_SIZE]
        decoded = _decode(body)
        request = decoded.request or decoded
        self.tokens = request.max_completion_tokens or request.max_tokens or engine.tokens
        self.prompt, self.cached, wait = len(body) // 4, 0, 0.0
        if engine.cache_blocks:
            text = "".join([message.content for message in request.messages])
            engine.groups.add(text[:BLOCK].encode())
            self.prompt = len(text) // engine.token_size
            wait, self.cached, blocks = engine.prefill(text)
            self.extra = hashes_header(blocks) if self.hashes_wanted and engine.publisher is not None else b""
        self.hashes_wanted = False
        if request.stream:
            self.ids = self.ids_wanted or decoded is not request
            self.ids_wanted = False
            self.index = sum(map(len, decoded.token_ids))
            self.transport.write(_STREAM_HEAD % (self.extra + (_RESUMABLE if self.ids else b"")))
            self.begin = lambda: self._stream(wait)
        else:
            self.begin = lambda: self._unary(wait)
        if engine.slots and engine.running > engine.slots:
            engine.waiting.append(self)
        else:
            self._begin()

    def _begin(self) -> None:
        assert self.begin is not None
        begin, self.begin = self.begin, None
        begin()

    def _stream(self, wait: float) -> None:
        self.next = self.loop.time() + wait + self.engine.interval
        self.timer = self.loop.call_at(self.next, self._token if self.index < self.tokens else self._end)

    def _unary(self, wait: float) -> None:
        if wait + self.engine.delay:
            self.timer = self.loop.call_later(wait + self.engine.delay, self._whole)
        else:
            self._whole()

    def _whole(self) -> None:
        name = self.engine.name.encode()
        text = b" word" * self.tokens
        usage = self._usage()
        self._finish()
        self.transport.write(known_routes.response(200, _UNARY % (self.question, name, text, usage), self.extra))

    def _token(self) -> None:
        event = _EVENT % (self.question, self.index, time.perf_counter_ns())
        if self.ids:
            event += b": %d\n\n" % self.index
        self.index += 1
        self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.next += self.engine.interval
        self.timer = self.loop.call_at(self.next, self._token if self.index < self.tokens else self._end)

    def _end(self) -> None:
        event = _LAST % self._usage()
        if self.ids:
            event += b": \n\n"
        self._finish()
        self.transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))

    def _usage(self) -> bytes:
        """The usage of a response; without a prefix cache it has no cached tokens."""
        cached = _CACHED % self.cached if self.engine.cache_blocks and self.engine.says_cached else b""
        return _USAGE % (self.prompt, self.tokens, self.prompt + self.tokens, cached)

    def _finish(self) -> None:
        """The response is complete, or the connection gone: the next one may have the slot."""
        self.busy = False
        engine = self.engine
        engine.active -= 1
        if self.begin is not None:
            self.begin = None
            engine.waiting.remove(self)
        elif engine.waiting:
            engine.waiting.popleft()._begin()


@contextlib.asynccontextmanager
async def fleet(count: int = 4, **settings: object) -> AsyncIterator[list[Engine]]:
    """Engines with these fields, all gone afterwards."""
    engines = [Engine(f"e{index}", **settings) for index in range(count)]  # type: ignore[arg-type]
    for engine in engines:
        await engine.start()
    try:
        yield engines
    finally:
        for engine in engines:
            engine.kill()
