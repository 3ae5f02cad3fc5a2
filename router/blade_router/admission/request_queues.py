"""The request queues of all services and the pending-request buffer, made and configured together."""

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from blade_protocol.routing import HoldConfig, QueueConfig
from blade_router.admission.capacity.slots import SHARED_SERVICES, WIDTH, Slots, open_row
from blade_router.admission.demand import Demand
from blade_router.admission.interface import Admission
from blade_router.admission.limits import CONCURRENT
from blade_router.admission.pending_buffer import PendingBuffer
from blade_router.admission.request_queue import UNQUEUED, RequestQueue
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.client import Client
from blade_router.request.request import ClientRequest
from blade_router.statistics.distribution import Distribution
from blade_router.workers.shared_memory import SharedColumns, SharedMemory

Borrow = Callable[[str, Sequence[tuple[int, int]]], Awaitable[bool]]
"""Borrows resources of a quota or of slots, by name: True when there are more than before."""


class RequestQueues:
    """The queue of each service, made when it is first used, and one buffer for pending requests."""

    def __init__(self, endpoints: EndpointSet, memory: SharedMemory | None = None) -> None:
        self._endpoints = endpoints
        self._workers = memory.workers if memory is not None else 1
        self._columns: SharedColumns | None = None
        held = None
        if memory is not None and memory.workers > 1:
            held = SharedColumns(memory, "held", 1).open("requests")
            with contextlib.suppress(ValueError):  # no room for so many workers: they split the slots
                self._columns = SharedColumns(memory, "slots", SHARED_SERVICES, WIDTH)
        self.demand = Demand(held)
        self.borrow: Borrow | None = None
        """Borrows slots from other replicas; set by its owner where there may be some."""
        self._config = QueueConfig()
        self._replicas = 1
        self._several_keys = False
        self.queues: dict[str, RequestQueue] = {}
        self.waited = Distribution()
        """Seconds requests waited in queues; those that had to."""
        self.listeners: list[Callable[[], None]] = []
        """Called when queues or the number of replicas have changed."""
        endpoints.listeners.append(self._update_capacity)
        # It listens after the queues: they know a new endpoint's capacity when it releases pending requests.
        self.pending = PendingBuffer(endpoints, demand=self.demand)

    def configure(self, queue: QueueConfig, hold: HoldConfig) -> None:
        """Take over new limits."""
        self._config = queue
        self._configure_all()
        self.pending.configure(hold)

    def split(self, replicas: int) -> None:
        """Share the slots of each service's engines with so many routers, this one among them."""
        self._replicas = replicas
        self._configure_all()

    def set_keys(self, count: int) -> None:
        """There are so many API keys: with several, none of them may hold all slots."""
        self._several_keys = count > 1
        self._configure_all()

    def queue(self, service: str = "") -> RequestQueue:
        """The queue of that service."""
        queue = self.queues.get(service)
        if queue is None:
            row = open_row(self._columns, service)
            queue = RequestQueue(self._endpoints, service, self._config, row=row, waited=self.waited)
            self._configure(queue)
            self.queues[service] = queue
            for listener in self.listeners:
                listener()
        return queue

    # lending between replicas

    def lendable(self, name: str) -> Slots | None:
        """The slots of that name, unless workers split them."""
        for queue in self.queues.values():
            if queue.slots.name == name and self._shares(queue):
                return queue.slots
        return None

    def __iter__(self) -> Iterator[str]:
        return (queue.slots.name for queue in self.queues.values())

    def _shares(self, queue: RequestQueue) -> bool:
        return self._workers == 1 or queue.slots.workers > 1

    def _configure_all(self) -> None:
        for queue in self.queues.values():
            self._configure(queue)
        for listener in self.listeners:
            listener()

    def _configure(self, queue: RequestQueue) -> None:
        routers = self._replicas * (1 if self._shares(queue) else self._workers)
        queue.configure(self._config, routers, several_keys=self._several_keys)
        queue.borrow = partial(self._borrow, queue.slots.name) if self.borrow is not None else None

    async def _borrow(self, name: str, wanted: int) -> bool:
        return self.borrow is not None and await self.borrow(name, [(CONCURRENT, wanted)])

    async def wait_for_endpoint(self, request: ClientRequest, client: Client, admission: Admission) -> bool:
        """Buffer a request until an endpoint can serve it; see ``AdmissionControl.wait_for_endpoint``."""
        queued = admission.queued or UNQUEUED
        streams = bool(request.fields.stream)
        began = time.monotonic()
        waited = await self.pending.wait(
            queued,
            admission.service,
            len(request.body),
            client,
            streams,
            adapter=admission.adapter,
            key=admission.key_name,
            waited=admission.waited_seconds,
        )
        admission.waited_seconds += time.monotonic() - began
        return waited

    def _update_capacity(self) -> None:
        if self.borrow is not None:  # other replicas borrow slots of services that nobody has sent a request for here
            for service in {endpoint.config.service for endpoint in self._endpoints.all}:
                self.queue(service)
        for queue in self.queues.values():
            queue.update_capacity()
