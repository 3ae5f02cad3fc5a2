"""The pending-request buffer: a request that comes while no engine is ready waits for one, instead of being refused.

That is what a service scaled to zero needs, and a first start. Requests wait in the order in which they came, each on
a future. When an endpoint becomes usable they go to the service's queue, which admits as many as the engines take.
"""

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol

from blade_protocol.routing import HoldConfig
from blade_router.admission.demand import Demand
from blade_router.admission.fair_queue import FairQueue
from blade_router.admission.request_queue import RETRY_MOST, UNQUEUED, QueuedRequest, WaitingClient
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.errors import ClientGone, Refused

START_SECONDS = 10.0
"""How long an engine is assumed to take to become ready, before one has been seen to do so."""
RECHECK_SECONDS = 1.0
"""Seconds between two checks while requests are pending: nobody is notified of an ejection's end, or of an adapter."""


class PendingClient(WaitingClient, Protocol):
    """The client of a request that waits for an endpoint."""

    def heartbeat(self, comment: bytes) -> Awaitable[None]: ...


class PendingRequest(QueuedRequest):
    """A request that waits for an endpoint. It may have no place in a queue, so it is one itself."""

    __slots__ = ("adapter", "began", "buffer", "queued", "service")

    def __init__(
        self,
        buffer: "PendingBuffer",
        queued: QueuedRequest,
        service: str,
        key: str,
        size: int,
        now: float,
        waited: float = 0.0,
        adapter: str | None = None,
    ) -> None:
        super().__init__(None, queued.key or key, queued.weight, queued.priority, size, queued.cost)
        self.buffer = buffer
        self.queued = queued
        """Its place in the service's queue."""
        self.service = service
        self.adapter = adapter
        self.began = now
        """When this wait began."""
        self.since = now - waited
        """What its age is counted from: other waits of it before count, too."""

    def abort(self, error: Exception) -> None:
        self.buffer.refuse(self, error)


class PendingBuffer:
    """The pending requests of all services.

    Args:
        endpoints: all endpoints; it listens for changes of them.
        demand: is kept up to date with what is pending.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        endpoints: EndpointSet,
        config: HoldConfig | None = None,
        *,
        demand: Demand | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoints = endpoints
        self._config = config or HoldConfig()
        self._clock = clock
        self._demand = demand or Demand()
        self._pending: OrderedDict[PendingRequest, None] = OrderedDict()
        """In the order in which they came."""
        self._by_key: FairQueue[PendingRequest] = FairQueue()
        """The same requests: decides which one is evicted when there is no room."""
        self._bytes = 0
        self._age_timer: asyncio.TimerHandle | None = None
        self._timer_since = 0.0
        """The ``since`` of the request for which the timer is set."""
        self._recheck_timer: asyncio.TimerHandle | None = None
        self._start_seconds = START_SECONDS
        """How long the last absence of engines took."""
        self.active_at = clock()
        """When a request came or left last; else when this buffer was made."""
        self.arrivals: dict[str, int] = {}
        """Requests that found no engine ready and were buffered, ever, by service."""
        endpoints.listeners.append(self._release_ready)

    def configure(self, config: HoldConfig) -> None:
        self._config = config
        if config.scaled_to_zero:
            for pending in list(self._pending):
                self.refuse(pending, _scaled_to_zero())
        if self._pending:
            self._set_age_timer(min(pending.since for pending in self._pending))

    @property
    def wakes(self) -> bool:
        """An engine is started for what is pending here."""
        return self._config.wakes and self._config.max_requests > 0

    def count(self, service: str | None = None) -> int:
        """How many requests are pending."""
        if service is None:
            return len(self._pending)
        return sum(pending.service == service for pending in self._pending)

    def oldest(self, service: str) -> float:
        """The age of a service's oldest pending request, in seconds."""
        now = self._clock()
        return max((now - pending.since for pending in self._pending if pending.service == service), default=0.0)

    async def wait(
        self,
        queued: QueuedRequest,
        service: str,
        size: int,
        client: PendingClient,
        streams: bool,
        *,
        adapter: str | None = None,
        key: str = "",
        waited: float = 0.0,
    ) -> bool:
        """Wait for an endpoint to become usable, and then for the request's turn.

        Args:
            queued: the request's place with the engines, which it does not have meanwhile.
            size: bytes of its body.
            streams: comments keep its connection alive; others get nothing until they get their response.
            adapter: the endpoint has to have it; see ``EndpointSet.awaits_adapter`` for how long it is waited for.
            key: whose request it is, where ``queued`` does not say it.
            waited: seconds it has waited before, for endpoints that did not serve it: they count in its age.

        Returns:
            False when there is nothing to wait for: nothing is buffered here, or an endpoint is usable.

        Raises:
            Refused: 503, no room to wait, it has waited too long, or nobody will start an engine.
            ClientGone: the client left meanwhile.
        """
        config = self._config
        if not (config.max_requests or config.scaled_to_zero) or self._is_served(service, adapter):
            return False
        if config.scaled_to_zero:
            raise _scaled_to_zero()
        pending = PendingRequest(self, queued, service, key, size, self._clock(), waited, adapter)
        self._make_room(pending)
        future = asyncio.get_running_loop().create_future()
        pending.future = future
        if queued is not UNQUEUED:
            queued.future = future
        self._give_back(queued)
        self._push(pending)
        try:
            client.attach(pending)
            await (self._beating(client, future) if streams else future)
        except BaseException:
            self._withdraw(pending)
            if not future.cancel() and not future.cancelled():
                future.exception()  # it is raised in another way: asyncio need not complain
            raise
        finally:
            client.detach()
            # An error in it would keep the request it went through alive.
            pending.future = None
            if queued is not UNQUEUED:
                queued.future = None
            del future
        return True

    # inside

    async def _beating(self, client: PendingClient, future: "asyncio.Future[None]") -> None:
        """Wait for ``future``, with comments to the client meanwhile; it goes on in the same turn as one without."""
        beats = asyncio.create_task(self._beat(client))
        try:
            await future
        finally:
            beats.cancel()

    async def _beat(self, client: PendingClient) -> None:
        with contextlib.suppress(ClientGone):  # what is attached to the client is aborted, too
            while True:
                await asyncio.sleep(self._config.heartbeat)
                await client.heartbeat(b"waiting")

    def _make_room(self, pending: PendingRequest) -> None:
        """See that it may wait: it fits, or a request of a key that has more pending is evicted."""
        config = self._config
        count, size = len(self._pending), self._bytes + pending.size
        if count < config.max_requests and size <= config.max_bytes:
            return
        candidate = self._by_key.eviction_candidate(pending) if self._pending else None
        if candidate is None or count > config.max_requests or size - candidate.size > config.max_bytes:
            raise self._full()
        self.refuse(candidate, self._full())

    def _full(self) -> Refused:
        message = "no engine is ready, and as many requests as allowed wait for one; try again shortly"
        return Refused(503, message, code="hold_full", retry_after=self._retry_after())

    @staticmethod
    def _give_back(queued: QueuedRequest) -> None:
        """Others may have its place: it is not with an engine."""
        if queued.running and queued.queue is not None:
            queued.running = False
            queued.queue.on_released(queued)

    def _release_ready(self) -> None:
        """Endpoints have changed: release the requests of services that have one now, in order."""
        if not self._pending:
            return
        ready: dict[tuple[str, str | None], bool] = {}
        for pending in list(self._pending):
            wanted = pending.service, pending.adapter
            if wanted not in ready:
                ready[wanted] = self._is_served(*wanted)
                if ready[wanted]:  # the first of a service has waited for as long as there was no engine
                    self._start_seconds = self._clock() - pending.began
            if ready[wanted]:
                self._forget(pending)
                queue = pending.queued.queue
                if queue is not None:
                    queue.requeue(pending.queued, pending.since + self._config.max_age)
                else:
                    pending.grant()

    def _is_served(self, service: str, adapter: str | None) -> bool:
        """Whether there is nothing to wait for."""
        return self._endpoints.usable_count(service) > 0 and not self._endpoints.awaits_adapter(adapter, service)

    def refuse(self, pending: PendingRequest, error: Exception) -> None:
        """End a wait, here or in the queue."""
        self._withdraw(pending)
        pending.refuse(error)

    def _withdraw(self, pending: PendingRequest) -> None:
        """It waits no more, neither here nor in the queue."""
        if pending in self._pending:
            self._forget(pending)
        elif pending.queued.queue is not None:
            pending.queued.queue.withdraw(pending.queued)

    def _push(self, pending: PendingRequest) -> None:
        self._pending[pending] = None
        self._by_key.push(pending)
        self._bytes += pending.size
        self._demand.update(len(self._pending))
        self.active_at = self._clock()
        self.arrivals[pending.service] = self.arrivals.get(pending.service, 0) + 1
        if self._age_timer is None or pending.since < self._timer_since:
            self._set_age_timer(pending.since)
        self._recheck_later()

    def _recheck_later(self) -> None:
        if self._recheck_timer is None:
            self._recheck_timer = asyncio.get_running_loop().call_later(RECHECK_SECONDS, self._recheck)

    def _forget(self, pending: PendingRequest) -> None:
        del self._pending[pending]
        self._by_key.remove(pending)
        self._bytes -= pending.size
        self._demand.update(len(self._pending))
        self.active_at = self._clock()
        if self._pending:
            return
        for timer in (self._age_timer, self._recheck_timer):
            if timer is not None:
                timer.cancel()
        self._age_timer = self._recheck_timer = None

    def _recheck(self) -> None:
        """An ejection may have ended, or an adapter be loaded: notify all, as the queues have to know first."""
        self._recheck_timer = None
        if any(self._is_served(*wanted) for wanted in {(each.service, each.adapter) for each in self._pending}):
            self._endpoints.notify()
        if self._pending:
            self._recheck_later()

    def _retry_after(self) -> int:
        """Seconds until an engine should be there, judged by how long the last start took."""
        passed = self._clock() - next(iter(self._pending)).began if self._pending else 0.0
        return max(1, min(RETRY_MOST, math.ceil(self._start_seconds - passed)))

    def _set_age_timer(self, oldest: float) -> None:
        """Expire requests when the one that waits since ``oldest`` is too old."""
        if self._age_timer is not None:
            self._age_timer.cancel()
        self._timer_since = oldest
        delay = max(0.0, oldest + self._config.max_age - self._clock())
        self._age_timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        """Refuse those that have been pending for too long."""
        self._age_timer = None
        limit = self._config.max_age
        now = self._clock()
        for pending in [pending for pending in self._pending if now - pending.since >= limit]:
            message = f"no engine became ready within {limit:g} s, which is the limit; try again later"
            self.refuse(pending, Refused(503, message, code="hold_timeout", retry_after=self._retry_after()))
        if self._pending:
            self._set_age_timer(min(pending.since for pending in self._pending))


def _scaled_to_zero() -> Refused:
    message = "this service is scaled to zero by hand: nothing starts an engine until somebody scales it up"
    return Refused(503, message, code="scaled_to_zero")
