"""A fleet of engines behind the request queues of one or more routers, in virtual time: who waits how long for a slot.

Time goes in steps of an engine: with each, every stream that has a slot gets a token, and engines report their load. So
a test counts steps, and thousands of requests take a fraction of a second.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from blade_protocol.routing import EndpointConfig, QueueConfig
from blade_router.admission.request_queue import QueuedRequest, RequestQueue
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.client import Client
from blade_router.workers.shared_memory import PrivateRow, SharedRow

STEP_SECONDS = 0.02


async def enter(
    queue: RequestQueue,
    key: str,
    weight: float,
    priority: int,
    size: int,
    tokens: int,
    client: Client,
    *,
    streams: bool,
) -> QueuedRequest:
    """Take a place with the engines, or wait for it."""
    queued = queue.enter(key, weight, priority, size, tokens, streams)
    if queued.waits:
        await queue.wait(queued, client)
    return queued


class Waiting:
    """A client that does not leave, and reads at once."""

    slow = False

    def attach(self, work: Any) -> None: ...

    def detach(self) -> None: ...


@dataclass(eq=False)
class Stream:
    """One request of a key for so many tokens."""

    key: str
    tokens: int
    prompt: int = 0
    """Tokens of its prompt that are still to be computed."""
    sent_at: int = 0
    first_token: int | None = None
    """The step it came in."""
    done: bool = False
    place: "asyncio.Task[QueuedRequest] | None" = None

    @property
    def delay(self) -> int | None:
        """Steps until its first token; None while there is none."""
        return None if self.first_token is None else self.first_token - self.sent_at


@dataclass
class Engine:
    """Slots, and a queue in the order of arrival for those that find none."""

    slots: int
    prompt_tokens: int = 1 << 30
    """Tokens of prompts it computes in a step, one prompt after the other."""
    waiting: deque[Stream] = field(default_factory=deque)
    running: list[Stream] = field(default_factory=list)

    def step(self, now: int) -> list[Stream]:
        """One token for each that has a slot; returns those that have all theirs."""
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.popleft())
        budget = self.prompt_tokens
        for stream in self.running:
            computed = min(budget, stream.prompt)
            stream.prompt -= computed
            budget -= computed
            if stream.prompt:
                continue
            if stream.first_token is None:
                stream.first_token = now
            stream.tokens -= 1
        ended = [stream for stream in self.running if not stream.tokens]
        self.running = [stream for stream in self.running if stream.tokens]
        return ended


class FairFleet:
    """``routers`` queues, one for each router process, in front of the same engines."""

    def __init__(
        self,
        *,
        engines: int = 1,
        slots: int = 16,
        rows: Iterable[SharedRow | PrivateRow | None] = (None,),
        reports: bool = True,
        prompt_tokens: int = 1 << 30,
        several_keys: bool = True,
        **config: Any,
    ) -> None:
        self.now = 0
        self.engines = [Engine(slots, prompt_tokens) for _ in range(engines)]
        self.reports = reports
        self.queues: list[RequestQueue] = []
        self._sets: list[EndpointSet] = []
        self._streams: list[Stream] = []
        self._turn = itertools.count()
        for row in rows:
            endpoints = EndpointSet()
            endpoints.update([EndpointConfig(url=f"http://10.0.0.{at}:80") for at in range(engines)])
            for endpoint in endpoints.all:
                endpoint.health.mark_up()
            queue = RequestQueue(endpoints, row=row, clock=lambda: self.now * STEP_SECONDS)
            queue.configure(QueueConfig(max_age=1e6, **config), several_keys=several_keys)
            self.queues.append(queue)
            self._sets.append(endpoints)
        self._report()

    async def send(self, key: str, count: int, tokens: int, *, prompt: int = 0, router: int = 0) -> list[Stream]:
        """So many streams of a key, to one router."""
        queue = self.queues[router]
        streams = [Stream(key, tokens, prompt, self.now) for _ in range(count)]
        for stream in streams:
            entering = enter(queue, key, 1.0, 0, 1, tokens, cast(Client, Waiting()), streams=True)
            stream.place = asyncio.create_task(entering)
        self._streams += streams
        await self._settle()
        return streams

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now += 1
            for engine in self.engines:
                ended = engine.step(self.now)
                for stream in (*engine.running, *ended):
                    if stream.first_token == self.now and stream.place is not None:
                        stream.place.result().first_token()
                for stream in ended:
                    stream.done = True
                    assert stream.place is not None
                    stream.place.result().release()
            self._report()
            await self._settle()

    def held(self, key: str) -> int:
        """Requests of a key that engines have."""
        return sum(stream.key == key for engine in self.engines for stream in (*engine.running, *engine.waiting))

    @property
    def waiting_in_engines(self) -> int:
        return sum(len(engine.waiting) for engine in self.engines)

    async def close(self) -> None:
        """Let everybody finish: nothing may be left."""
        for stream in self._streams:
            stream.tokens = min(stream.tokens, 1) if not stream.done else 0
        while not all(stream.done for stream in self._streams):
            await self.run(1)
        assert [queue.slots.running for queue in self.queues] == [0] * len(self.queues)

    def _report(self) -> None:
        for endpoints in self._sets:
            for endpoint, engine in zip(endpoints.all, self.engines, strict=True):
                if self.reports:
                    endpoint.report.update(
                        running=len(engine.running), waiting=len(engine.waiting), capacity=engine.slots
                    )
                    endpoint.report.reported_at = self.now + 1.0
        for queue in self.queues:
            queue.update_capacity()

    async def _settle(self) -> None:
        """Let requests that have got their turn go to an engine."""
        for _ in range(4):
            await asyncio.sleep(0)
        on_engines = {stream for engine in self.engines for stream in (*engine.running, *engine.waiting)}
        for stream in self._streams:
            place = stream.place
            if place is not None and place.done() and not stream.done and stream not in on_engines:
                next(self._turn)
                min(self.engines, key=lambda engine: len(engine.running) + len(engine.waiting)).waiting.append(stream)
