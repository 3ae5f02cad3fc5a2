"""The bounded request queue of a service: backpressure while its engines have enough to do.

Engines get no more requests than they have slots (``capacity.slots``), the others wait here, where they can be put in
order, counted and refused. A request waits on a future of its own: there is no task per request, one timer per queue
sees to the age limit, and one looks for slots that other processes gave back while requests wait. Where the queue is
switched off entering returns ``UNQUEUED``, which all requests share.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from blade_protocol.routing import QueueConfig
from blade_router.admission.capacity.slots import WIDTH, Slots
from blade_router.admission.capacity.start_window import Start, StartWindow
from blade_router.admission.fair_queue import FairQueue, Waiting
from blade_router.admission.queue_state import QueueState
from blade_router.endpoints.endpoint import UNLIMITED
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.client import Abortable
from blade_router.http.errors import Refused
from blade_router.statistics.distribution import Distribution
from blade_router.statistics.rates import Rate
from blade_router.workers.shared_memory import PrivateRow, SharedRow

AGED_SHARE = 0.5
"""Part of the age limit after which a waiting request's band is not passed over for ever: every fourth turn is its."""
AGED_EVERY = 4
REFRESH_SECONDS = 0.05
"""Seconds after which the engines' load reports are read again."""
RETRY_MOST = 60
"""Seconds; the longest ``Retry-After``."""


class WaitingClient(Protocol):
    """The client of a request that waits."""

    def attach(self, work: Abortable) -> None: ...

    def detach(self) -> None: ...


class QueuedRequest(Waiting):
    """A request's place with the engines, or its place in the queue for one."""

    __slots__ = ("future", "patience", "queue", "running", "since", "size", "start", "streams")

    def __init__(
        self,
        queue: "RequestQueue | None",
        key: str,
        weight: float,
        priority: int,
        size: int,
        tokens: int,
        streams: bool = False,
    ) -> None:
        super().__init__(key, weight, priority, tokens)
        self.queue = queue
        self.size = size
        self.since = 0.0
        """When it began to wait."""
        self.patience = 0.0
        """Seconds that it may wait longer than others: what is left of its time to wait for an engine."""
        self.running = False
        """It counts as one of those the engines have."""
        self.streams = streams
        self.start: Start | None = None
        """Set from when it is with an engine until its first token."""
        self.future: asyncio.Future[None] | None = None
        """Set while it waits; done when its turn has come."""

    @property
    def waits(self) -> bool:
        """The engines have no place for it yet."""
        return not self.running and self.queue is not None

    def release(self) -> None:
        """The request has ended: the next one may have its place. May be called again."""
        if self.running and self.queue is not None:
            self.running = False
            self.queue.ended(self)

    def first_token(self) -> None:
        """The engine has begun to respond."""
        if self.start is not None and self.queue is not None:
            self.queue.started(self)

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


UNQUEUED = QueuedRequest(None, "", 1.0, 0, 0, 0)
"""The place of requests that need none."""


class RequestQueue:
    """The queue of one service.

    Args:
        endpoints: all endpoints; those of ``service`` make its capacity.
        row: the numbers of this process about the service's slots, and of the other workers; see ``slots``.
        waited: observes the seconds of each request that had to wait.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        endpoints: EndpointSet,
        service: str = "",
        config: QueueConfig | None = None,
        *,
        row: SharedRow | PrivateRow | None = None,
        waited: Distribution | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = Slots(endpoints, service, row or PrivateRow(WIDTH), clock=clock)
        self.window = StartWindow(clock)
        self.borrow: Callable[[int], Awaitable[bool]] | None = None
        """Borrows so many slots from other replicas: True when there are more than before."""
        self._borrowing: asyncio.Task[None] | None = None
        self._config = config or QueueConfig()
        self._waited = waited or Distribution()
        self._clock = clock
        self._waiting: FairQueue[QueuedRequest] = FairQueue()
        self._arrived: OrderedDict[QueuedRequest, None] = OrderedDict()
        """The same requests, in the order in which they came."""
        self._tokens = 0
        self._bytes = 0
        self._turns = 0
        self._age_timer: asyncio.TimerHandle | None = None
        self._age_timer_for = 0.0
        """``since`` and ``patience`` of the request for which the timer is set."""
        self._refresh_timer: asyncio.TimerHandle | None = None
        self._refreshed = 0.0
        self._departures = Rate(10)
        self.configure(self._config)

    def configure(self, config: QueueConfig, routers: int = 1, *, several_keys: bool = False) -> None:
        """Take over new limits, at once.

        Args:
            routers, several_keys: see ``Slots.configure``.
        """
        self._config = config
        self._several_keys = several_keys
        self.slots.configure(config, routers, several_keys=several_keys)
        self._configure_window()
        self._fill()
        if self._arrived:
            self._set_age_timer()

    def update_capacity(self) -> None:
        """Endpoints or their load have changed: compute the capacity, and admit as many requests."""
        self._refreshed = self._clock()
        self.slots.update()
        self._configure_window()
        self._fill()

    @property
    def enabled(self) -> bool:
        """Engines get only as many requests at a time as they have slots."""
        return self._config.enabled

    def enter(
        self, key_name: str, weight: float, priority: int, size: int, tokens: int, streams: bool
    ) -> QueuedRequest:
        """Take a place with the engines, where there is one: otherwise ``wait`` for it. The queued's ``release`` must
        be called when the request has ended.

        While the service has no endpoint at all no request waits here: the pending-request buffer is for that.

        Args:
            key_name: whose request it is; keys share the engines by ``weight``.
            priority: lower goes first.
            size: bytes of the body.
            tokens: what the request may cost: prompt and output together.
        """
        if not self._config.enabled:
            return UNQUEUED
        slots = self.slots
        if self._clock() - self._refreshed > REFRESH_SECONDS:
            self.update_capacity()
        queued = QueuedRequest(self, key_name, weight, priority, size, tokens, streams)
        if not slots.total or (
            not self._waiting.count and slots.admits(key_name, weight, slots.free()) and not self.window.is_full()
        ):
            slots.take(key_name, weight)
            queued.running = True
            queued.start = self.window.begin(streams)
        return queued

    async def wait(self, queued: QueuedRequest, client: WaitingClient) -> None:
        """Wait for a place with the engines; only for one that ``waits``.

        Raises:
            Refused: 429, the queue is full; 503, it has waited too long.
            ClientGone: the client left meanwhile.
        """
        self._make_room(queued)
        queued.future = asyncio.get_running_loop().create_future()
        self._push(queued)
        self._fill()  # those before it may be of keys that have their share
        try:
            client.attach(queued)
            await queued.future
        except BaseException:
            self.withdraw(queued)
            queued.release()
            raise
        finally:
            client.detach()
            queued.future = None  # an error in it would keep the request it went through alive

    def ended(self, queued: QueuedRequest) -> None:
        """A request the engines had has ended."""
        self._departures.add(self._clock())
        self.on_released(queued)

    # for pending requests

    def started(self, queued: QueuedRequest) -> None:
        """The first token of a request has come."""
        if queued.start is not None:
            self.window.first_token(queued.start)
            queued.start = None
            if self._waiting.count:
                self._fill()

    def on_released(self, queued: QueuedRequest) -> None:
        """The slot of a request is free."""
        self.slots.release(queued.key)
        if queued.start is not None:
            self.window.end(queued.start)
            queued.start = None
        if self._waiting.count:
            self._fill()

    def requeue(self, queued: QueuedRequest, until: float = 0.0) -> None:
        """Queue a request that was admitted before, whatever the bounds: its future is done when its turn has come.

        It may wait as long as any other, and in any case until then.
        """
        if not self.enabled:
            queued.grant()
            return
        queued.patience = max(0.0, until - self._clock() - self._config.max_age)
        self._push(queued)
        self._fill()

    def withdraw(self, queued: QueuedRequest) -> bool:
        """Take a request out that does not wait any more; False when it did not wait."""
        if queued not in self._arrived:
            return False
        self._waiting.remove(queued)
        self._forget(queued)
        return True

    # its state

    def state(self) -> QueueState:
        now = self._clock()
        ages = [now - queued.since for queued in self._arrived]
        return QueueState(
            running=self.slots.running,
            capacity=self.slots.part,
            requests=len(ages),
            tokens=self._tokens,
            bytes=self._bytes,
            oldest_seconds=ages[0] if ages else 0.0,
            p95_seconds=ages[math.floor(len(ages) * 0.05)] if ages else 0.0,  # the oldest is the first
        )

    def retry_after(self, queued: QueuedRequest) -> int:
        """Whole seconds until the turn of ``queued`` would come, at the rate of the last ten seconds."""
        rate = self._departures.per_second(self._clock())
        ahead = self._waiting.ahead(queued) + 1
        return max(1, min(RETRY_MOST, math.ceil(ahead / rate))) if rate else RETRY_MOST

    # inside

    def _make_room(self, queued: QueuedRequest) -> None:
        """See that ``queued`` may wait: it fits, or another request is evicted for it."""
        config = self._config
        count, size = len(self._arrived) + 1, self._bytes + queued.size
        if count <= config.max_requests and size <= config.max_bytes:
            return
        candidate = self._waiting.eviction_candidate(queued) if self._arrived else None
        if candidate is None or count - 1 > config.max_requests or size - candidate.size > config.max_bytes:
            raise self._full(queued)
        self.withdraw(candidate)
        candidate.refuse(self._full(candidate))

    def _full(self, queued: QueuedRequest) -> Refused:
        seconds = self.retry_after(queued)
        message = f"the service is busy and its queue is full; try again in {seconds} s, or send fewer requests"
        return Refused(429, message, code="queue_full", retry_after=seconds)

    def _push(self, queued: QueuedRequest) -> None:
        queued.since = self._clock()
        self._waiting.push(queued)
        self._arrived[queued] = None
        self._tokens += queued.cost
        self._bytes += queued.size
        self.slots.set_waiting(self._waiting.count)
        self.slots.wait(queued.key, queued.weight)
        if self._age_timer is None or queued.since + queued.patience < self._age_timer_for:
            self._set_age_timer()
        self._refresh_later()

    def _refresh_later(self) -> None:
        if self._refresh_timer is None:
            self._refresh_timer = asyncio.get_running_loop().call_later(REFRESH_SECONDS, self._refresh)

    def _fill(self) -> None:
        """Admit as many as there are slots for."""
        if not self._waiting.count:
            return
        slots = self.slots
        if not self.enabled or not slots.total:
            # It was switched off, or the last endpoint has gone: they are buffered elsewhere, or refused with a 503.
            while self._waiting.count:
                self._admit(self._waiting.pop())
        while self._waiting.count and (free := slots.free()) > 0 and not self.window.is_full():
            self._turns += 1
            priority = None
            if self._turns % AGED_EVERY == 0:
                oldest = next(iter(self._arrived))
                if self._clock() - oldest.since > AGED_SHARE * self._config.max_age:
                    priority = oldest.priority
            queued = self._waiting.pop_admitted(partial(self._may_run, free), priority)
            if queued is None:
                break
            self._admit(queued)
        if not self._waiting.count or self.borrow is None or self._borrowing is not None:
            return
        # A key that has its share of the slots gets more with more of them; what waits for first tokens does not.
        if (slots.free() <= 0 or not self.window.is_full()) and not slots.confines(self._waiting.keys()):
            self._borrowing = asyncio.create_task(self._borrow(), name="borrow slots")

    def _configure_window(self) -> None:
        """Without a number of slots nothing is held back, and no prompt either."""
        limited = self.slots.total < UNLIMITED
        self.window.configure(self.slots.engines, enabled=limited and self._several_keys and self._config.enabled)

    def _may_run(self, free: int, queued: QueuedRequest) -> bool:
        return self.slots.admits(queued.key, queued.weight, free)

    async def _borrow(self) -> None:
        """Borrow slots of other replicas for those that wait."""
        try:
            if self.borrow is not None and await self.borrow(self._waiting.count):
                asyncio.get_running_loop().call_soon(self._fill)
        finally:
            self._borrowing = None

    def _admit(self, queued: QueuedRequest) -> None:
        self._forget(queued)
        self.slots.take(queued.key, queued.weight)
        queued.running = True
        queued.start = self.window.begin(queued.streams)
        self._waited.observe(self._clock() - queued.since)
        queued.grant()

    def _refresh(self) -> None:
        """Look for slots while requests wait: other processes and engines tell nobody that some are free."""
        self._refresh_timer = None
        self.update_capacity()
        if self._arrived:
            self._refresh_later()

    def _forget(self, queued: QueuedRequest) -> None:
        del self._arrived[queued]
        self._tokens -= queued.cost
        self._bytes -= queued.size
        self.slots.set_waiting(len(self._arrived))
        self.slots.wait_no_more(queued.key)
        if not self._arrived:
            for timer in (self._age_timer, self._refresh_timer):
                if timer is not None:
                    timer.cancel()
            self._age_timer = self._refresh_timer = None

    def _set_age_timer(self) -> None:
        """Expire requests when the oldest is too old."""
        if self._age_timer is not None:
            self._age_timer.cancel()
        self._age_timer_for = min(queued.since + queued.patience for queued in self._first_to_expire())
        delay = max(0.0, self._age_timer_for + self._config.max_age - self._clock())
        self._age_timer = asyncio.get_running_loop().call_later(delay, self.expire)

    def _first_to_expire(self) -> list[QueuedRequest]:
        """Those of which one expires first: the oldest, and what of more patience came before it."""
        found = []
        for queued in self._arrived:
            found.append(queued)
            if not queued.patience:
                break
        return found

    def expire(self) -> None:
        """Refuse those that have waited too long."""
        self._age_timer = None
        now = self._clock()
        while expired := [each for each in self._first_to_expire() if now - each.since >= self._limit(each)]:
            for queued in expired:
                self.withdraw(queued)
                seconds = self._limit(queued)
                message = f"the request waited {seconds:.3g} s for an engine, which is the limit; try again later"
                queued.refuse(Refused(503, message, code="queue_timeout", retry_after=self.retry_after(queued)))
        if self._arrived:
            self._set_age_timer()

    def _limit(self, queued: QueuedRequest) -> float:
        return self._config.max_age + queued.patience
