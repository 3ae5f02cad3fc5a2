"""The bounded queue of a service: what waits in the router while its engines have enough to do.

Engines get only so many requests at a time, the others wait here, where they can be put in order, counted and refused.
A request waits on a future of its own: nothing polls, there is no task per request, and one timer per queue sees to
the age limit. With no limit configured there is no queue: entering returns a slot all requests share.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from blade_protocol.routing import QueueConfig
from blade_router.admission.fair import FairQueue, Waiting
from blade_router.client import Client
from blade_router.distribution import Distribution
from blade_router.endpoints import EndpointSet
from blade_router.errors import Refused
from blade_router.rates import Rate

AGED = 0.5
"""Part of the age limit after which a waiting request's band is not passed over for ever: every fourth turn is its."""
TURNS = 4
RETRY_MOST = 60
"""Seconds; the longest ``Retry-After``."""


class Slot(Waiting):
    """A request's place with the engines, or its place in the queue for one."""

    __slots__ = ("future", "queue", "running", "since", "size")

    def __init__(self, queue: "Queue | None", key: str, weight: float, priority: int, size: int, tokens: int) -> None:
        super().__init__(key, weight, priority, tokens)
        self.queue = queue
        self.size = size
        self.since = 0.0
        """When it began to wait."""
        self.running = False
        """It counts as one of those the engines have."""
        self.future: asyncio.Future[None] | None = None
        """Set while it waits; done when its turn has come."""

    def leave(self) -> None:
        """The request has ended: the next one may have its place. May be called again."""
        if self.running and self.queue is not None:
            self.running = False
            self.queue.ended()

    def grant(self) -> None:
        """Its turn has come."""
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    def abort(self, error: Exception) -> None:
        """Its client left."""
        if self.queue is not None and self.queue.withdraw(self):
            self.refuse(error)

    def refuse(self, error: Exception) -> None:
        """It waits no more."""
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


FREE = Slot(None, "", 1.0, 0, 0, 0)
"""The slot of requests that need none."""


class QueueState(msgspec.Struct, frozen=True):
    """What waits in a queue now."""

    running: int = 0
    """Requests the engines have."""
    capacity: int = 0
    """Requests the engines may have; 0: no limit is configured, or no engine is there."""
    requests: int = 0
    tokens: int = 0
    bytes: int = 0
    oldest_seconds: float = 0.0
    p95_seconds: float = 0.0
    """The age that 95 % of those that wait have not reached."""


class Queue:
    """Of one service.

    Args:
        endpoints: all there are; those of ``service`` make the room.
        waited: gets the seconds of each request that had to wait.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        endpoints: EndpointSet,
        service: str = "",
        config: QueueConfig | None = None,
        *,
        waited: Distribution | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoints = endpoints
        self._service = service
        self._config = config or QueueConfig()
        self._waited = waited or Distribution()
        self._clock = clock
        self._routers = 1
        self._holds = False
        self._room = 0
        self._running = 0
        self._waiting: FairQueue[Slot] = FairQueue()
        self._arrived: OrderedDict[Slot, None] = OrderedDict()
        """The same, in the order in which they came."""
        self._tokens = 0
        self._bytes = 0
        self._turns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._departures = Rate(10)
        self.measure()

    def configure(self, config: QueueConfig, routers: int = 1, holds: bool = False) -> None:
        """Take over new limits, at once.

        Args:
            routers: so many processes share what the engines may have.
            holds: requests that find no endpoint are held elsewhere, and those that wait here go there too.
        """
        self._config = config
        self._holds = holds
        self._routers = max(1, routers)
        self.measure()
        if self._arrived:
            self._set_timer()

    def measure(self) -> None:
        """Endpoints or limits have changed: find out how much room there is, and fill it."""
        serving = self._endpoints.serving_count(self._service)
        room = self._config.endpoint_requests * serving
        self._room = max(1, room // self._routers) if room else 0
        self._fill()

    @property
    def limits(self) -> bool:
        """Engines get only so many requests at a time."""
        return self._config.endpoint_requests > 0

    async def enter(
        self, key_name: str, weight: float, priority: int, size: int, tokens: int, client: Client, streams: bool
    ) -> Slot:
        """Wait for a place with the engines. The slot's ``leave`` must be called when the request has ended.

        While the service has no endpoint at all nobody waits here: that is what holding is for.

        Args:
            key_name: whose request it is; keys share the engines by ``weight``.
            priority: lower goes first.
            size: bytes of the body.
            tokens: what the request may cost: prompt and answer together.

        Raises:
            Refused: 429, the queue is full; 503, it has waited too long.
            ClientGone: the client left meanwhile.
        """
        if not self.limits:
            return FREE
        slot = Slot(self, key_name, weight, priority, size, tokens)
        if not self._room or (self._running < self._room and not self._waiting.count):
            self._running += 1
            slot.running = True
            return slot
        self._make_room(slot)
        slot.future = asyncio.get_running_loop().create_future()
        self._push(slot)
        try:
            client.attach(slot)
            await slot.future
        except BaseException:
            self.withdraw(slot)
            slot.leave()
            raise
        finally:
            client.detach()
            slot.future = None  # an error in it would keep the request it went through alive
        return slot

    def ended(self) -> None:
        """A request the engines had has ended."""
        self._departures.add(self._clock())
        self.gave_back()

    # for requests that are held

    def gave_back(self) -> None:
        """A place is free."""
        self._running -= 1
        self._fill()

    def put_back(self, slot: Slot) -> None:
        """Queue a request that was admitted before, whatever the bounds: its future is done when its turn has come."""
        if not self.limits:
            slot.grant()
            return
        self._push(slot)
        self._fill()

    def withdraw(self, slot: Slot) -> bool:
        """Take a request out that does not want to wait any more; False when it does not wait."""
        if slot not in self._arrived:
            return False
        self._waiting.remove(slot)
        self._forget(slot)
        return True

    # what is told about it

    def state(self) -> QueueState:
        now = self._clock()
        ages = [now - slot.since for slot in self._arrived]
        return QueueState(
            running=self._running,
            capacity=self._room,
            requests=len(ages),
            tokens=self._tokens,
            bytes=self._bytes,
            oldest_seconds=ages[0] if ages else 0.0,
            p95_seconds=ages[math.floor(len(ages) * 0.05)] if ages else 0.0,  # the oldest is the first
        )

    def retry_after(self, slot: Slot) -> int:
        """Whole seconds until the turn of ``slot`` would come, at the rate of the last ten seconds."""
        rate = self._departures.per_second(self._clock())
        ahead = self._waiting.ahead(slot) + 1
        return max(1, min(RETRY_MOST, math.ceil(ahead / rate))) if rate else RETRY_MOST

    # inside

    def _make_room(self, slot: Slot) -> None:
        """See that ``slot`` may wait: it fits, or another gives way to it."""
        config = self._config
        count, size = len(self._arrived) + 1, self._bytes + slot.size
        if count <= config.max_requests and size <= config.max_bytes:
            return
        victim = self._waiting.victim(slot) if self._arrived else None
        if victim is None or count - 1 > config.max_requests or size - victim.size > config.max_bytes:
            raise self._full(slot)
        self.withdraw(victim)
        victim.refuse(self._full(victim))

    def _full(self, slot: Slot) -> Refused:
        seconds = self.retry_after(slot)
        message = f"the service is busy and its queue is full; try again in {seconds} s, or send fewer requests"
        return Refused(429, message, code="queue_full", retry_after=seconds)

    def _push(self, slot: Slot) -> None:
        slot.since = self._clock()
        self._waiting.push(slot)
        self._arrived[slot] = None
        self._tokens += slot.cost
        self._bytes += slot.size
        if self._timer is None:
            self._set_timer()

    def _fill(self) -> None:
        """Let in as many as there is room for."""
        if not self.limits or (self._holds and not self._room):
            # It was switched off, or the last endpoint has gone and what waits for another is held.
            while self._waiting.count:
                self._let_in(self._waiting.pop())
        while self._waiting.count and self._running < self._room:
            self._turns += 1
            priority = None
            if self._turns % TURNS == 0:
                oldest = next(iter(self._arrived))
                if self._clock() - oldest.since > AGED * self._config.max_age:
                    priority = oldest.priority
            self._let_in(self._waiting.pop(priority))

    def _let_in(self, slot: Slot) -> None:
        self._forget(slot)
        self._running += 1
        slot.running = True
        self._waited.observe(self._clock() - slot.since)
        slot.grant()

    def _forget(self, slot: Slot) -> None:
        del self._arrived[slot]
        self._tokens -= slot.cost
        self._bytes -= slot.size
        if not self._arrived and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        """Come back when the oldest is too old."""
        if self._timer is not None:
            self._timer.cancel()
        oldest = next(iter(self._arrived))
        delay = max(0.0, oldest.since + self._config.max_age - self._clock())
        self._timer = asyncio.get_running_loop().call_later(delay, self.expire)

    def expire(self) -> None:
        """Refuse those that have waited too long."""
        self._timer = None
        limit = self._config.max_age
        while self._arrived:
            slot = next(iter(self._arrived))
            if self._clock() - slot.since < limit:
                self._set_timer()
                return
            self.withdraw(slot)
            message = f"the request waited {limit:g} s for an engine, which is the limit; try again later"
            slot.refuse(Refused(503, message, code="queue_timeout", retry_after=self.retry_after(slot)))
