"""Where requests wait: the queues of all services and what is held, made and told together."""

from blade_protocol.routing import HoldConfig, QueueConfig
from blade_router.admission.gate import Ticket
from blade_router.admission.holding import Holding
from blade_router.admission.queue import FREE, Queue, Slot
from blade_router.client import Client
from blade_router.distribution import Distribution
from blade_router.endpoints import EndpointSet
from blade_router.request import ClientRequest


class WaitingRooms:
    """The queue of each service, made when it is first asked for, and one place to hold requests."""

    def __init__(self, endpoints: EndpointSet) -> None:
        self._endpoints = endpoints
        self._config = QueueConfig()
        self._holds = False
        self._routers = 1
        self.queues: dict[str, Queue] = {}
        self.waited = Distribution()
        """Seconds requests waited in queues; those that had to."""
        endpoints.listeners.append(self._measure)
        # It listens after the queues: they know of a new endpoint's room when it releases what it holds.
        self.holding = Holding(endpoints)

    def configure(self, queue: QueueConfig, hold: HoldConfig) -> None:
        """Take over new limits."""
        self._config = queue
        self._holds = hold.max_requests > 0
        for each in self.queues.values():
            each.configure(queue, self._routers, self._holds)
        self.holding.configure(hold)

    def split(self, routers: int) -> None:
        """So many processes share what the engines of a service may have."""
        self._routers = routers
        for each in self.queues.values():
            each.configure(self._config, routers, self._holds)

    def queue(self, service: str = "") -> Queue:
        """The queue of that service."""
        queue = self.queues.get(service)
        if queue is None:
            queue = Queue(self._endpoints, service, self._config, waited=self.waited)
            queue.configure(self._config, self._routers, self._holds)
            self.queues[service] = queue
        return queue

    async def hold(self, request: ClientRequest, client: Client, ticket: Ticket) -> bool:
        """What ``Gate.hold`` does."""
        slot = ticket.place if isinstance(ticket.place, Slot) else FREE
        streams = bool(request.fields.stream)
        return await self.holding.hold(slot, ticket.service, len(request.body), client, streams, key=ticket.key_name)

    def _measure(self) -> None:
        for queue in self.queues.values():
            queue.measure()
