"""Holding: a request that comes while no engine is ready waits for one, instead of being refused.

That is what a service scaled to zero needs, and a first start. Requests wait in the order in which they came, each on
a future. When an endpoint becomes usable they go to the service's queue, which lets in as many as the engines take.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from blade_protocol.routing import HoldConfig
from blade_router.admission.fair import FairQueue
from blade_router.admission.queue import FREE, RETRY_MOST, Slot
from blade_router.client import Client
from blade_router.endpoints import EndpointSet
from blade_router.errors import Refused

START_SECONDS = 10.0
"""How long an engine is thought to take to become ready, before one has been seen to do so."""
LOOK_SECONDS = 1.0
"""Between two looks while something is held: nobody tells that the pause an engine asked for is over."""


class Held(Slot):
    """A request that is held. Without a queue it has no slot of its own, so this is one."""

    __slots__ = ("holding", "place", "service")

    def __init__(self, holding: "Holding", place: Slot, service: str, key: str, size: int, now: float) -> None:
        super().__init__(None, place.key or key, place.weight, place.priority, size, place.cost)
        self.holding = holding
        self.place = place
        self.service = service
        self.since = now

    def abort(self, error: Exception) -> None:
        self.holding.refuse(self, error)


class Holding:
    """Of all services together.

    Args:
        endpoints: their endpoints; it listens for changes of them.
        clock: monotonic seconds.
    """

    def __init__(
        self, endpoints: EndpointSet, config: HoldConfig | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._endpoints = endpoints
        self._config = config or HoldConfig()
        self._clock = clock
        self._held: OrderedDict[Held, None] = OrderedDict()
        """In the order in which they came."""
        self._by_key: FairQueue[Held] = FairQueue()
        """The same: tells who gives way when there is no room."""
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._start_seconds = START_SECONDS
        """How long the last absence of engines took."""
        self.arrivals: dict[str, int] = {}
        """Requests that found no engine ready and were held, ever, by service."""
        endpoints.listeners.append(self._look)

    def configure(self, config: HoldConfig) -> None:
        self._config = config
        if self._held:
            self._set_timer()

    def count(self, service: str | None = None) -> int:
        """How many are held."""
        if service is None:
            return len(self._held)
        return sum(held.service == service for held in self._held)

    def oldest(self, service: str) -> float:
        """Seconds the first of a service is held."""
        first = next((held for held in self._held if held.service == service), None)
        return self._clock() - first.since if first is not None else 0.0

    async def hold(self, slot: Slot, service: str, size: int, client: Client, streams: bool, *, key: str = "") -> bool:
        """Wait for an endpoint to become usable, and then for the request's turn.

        Args:
            slot: the request's place with the engines, which it does not have meanwhile.
            size: bytes of its body.
            streams: comments keep its connection alive; others get nothing until they get their answer.
            key: whose request it is, where the slot does not say it.

        Returns:
            False when there is nothing to wait for: nothing is held here, or an endpoint is usable.

        Raises:
            Refused: 503, no room to hold it, or it was held for too long.
            ClientGone: the client left meanwhile.
        """
        config = self._config
        if not config.max_requests or self._endpoints.usable_count(service):
            return False
        held = Held(self, slot, service, key, size, self._clock())
        self._make_room(held)
        future = asyncio.get_running_loop().create_future()
        held.future = future
        if slot is not FREE:
            slot.future = future
        self._give_back(slot)
        self._push(held)
        try:
            client.attach(held)
            while streams and not future.done():
                done, _ = await asyncio.wait((future,), timeout=self._config.heartbeat)
                if not done:
                    await client.heartbeat(b"waiting")
            await future
        except BaseException:
            self._withdraw(held)
            if not future.cancel() and not future.cancelled():
                future.exception()  # heard of by another way: asyncio need not complain
            raise
        finally:
            client.detach()
            # An error in it would keep the request it went through alive.
            held.future = None
            if slot is not FREE:
                slot.future = None
            del future
        return True

    # inside

    def _make_room(self, held: Held) -> None:
        """See that it may wait: it fits, or one of a key that has more waiting gives way to it."""
        config = self._config
        count, size = len(self._held), self._bytes + held.size
        if count < config.max_requests and size <= config.max_bytes:
            return
        victim = self._by_key.victim(held) if self._held else None
        if victim is None or count > config.max_requests or size - victim.size > config.max_bytes:
            raise self._full()
        self.refuse(victim, self._full())

    def _full(self) -> Refused:
        message = "no engine is ready, and as many requests as allowed wait for one; try again shortly"
        return Refused(503, message, code="hold_full", retry_after=self._retry_after())

    @staticmethod
    def _give_back(slot: Slot) -> None:
        """Others may have its place: it is not with an engine."""
        if slot.running and slot.queue is not None:
            slot.running = False
            slot.queue.gave_back()

    def _look(self) -> None:
        """Endpoints have changed: whoever has one now goes on, in order."""
        if not self._held:
            return
        ready: dict[str, bool] = {}
        for held in list(self._held):
            service = held.service
            if service not in ready:
                ready[service] = self._endpoints.usable_count(service) > 0
                if ready[service]:  # the first of a service has waited for as long as there was no engine
                    self._start_seconds = self._clock() - held.since
            if ready[service]:
                self._forget(held)
                queue = held.place.queue
                if queue is not None:
                    queue.put_back(held.place)
                else:
                    held.grant()

    def refuse(self, held: Held, error: Exception) -> None:
        """End a wait, here or in the queue."""
        self._withdraw(held)
        held.refuse(error)

    def _withdraw(self, held: Held) -> None:
        """It waits no more, neither here nor in the queue."""
        if held in self._held:
            self._forget(held)
        elif held.place.queue is not None:
            held.place.queue.withdraw(held.place)

    def _push(self, held: Held) -> None:
        self._held[held] = None
        self._by_key.push(held)
        self._bytes += held.size
        self.arrivals[held.service] = self.arrivals.get(held.service, 0) + 1
        if self._timer is None:
            self._set_timer()
        if self._next_look is None:
            self._next_look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)

    def _forget(self, held: Held) -> None:
        del self._held[held]
        self._by_key.remove(held)
        self._bytes -= held.size
        if self._held:
            return
        for timer in (self._timer, self._next_look):
            if timer is not None:
                timer.cancel()
        self._timer = self._next_look = None

    def _look_again(self) -> None:
        """Only time may have passed: tell all who listen, as the queues have to know first."""
        self._next_look = None
        if any(self._endpoints.usable_count(service) for service in {held.service for held in self._held}):
            self._endpoints.tell()
        if self._held and self._next_look is None:
            self._next_look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again)

    def _retry_after(self) -> int:
        """Seconds until an engine should be there, judged by how long the last start took."""
        passed = self._clock() - next(iter(self._held)).since if self._held else 0.0
        return max(1, min(RETRY_MOST, math.ceil(self._start_seconds - passed)))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        oldest = next(iter(self._held))
        delay = max(0.0, oldest.since + self._config.max_age - self._clock())
        self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        """Refuse those that have been held for too long."""
        self._timer = None
        limit = self._config.max_age
        while self._held:
            held = next(iter(self._held))
            if self._clock() - held.since < limit:
                self._set_timer()
                return
            message = f"no engine became ready within {limit:g} s, which is the limit; try again later"
            self.refuse(held, Refused(503, message, code="hold_timeout", retry_after=self._retry_after()))
