"""Where requests wait: the queues of all services and what is held, made and told together."""

from blade_protocol.routing import HoldConfig, QueueConfig
from blade_router.admission.gate import Ticket
from blade_router.admission.holding import Holding
from blade_router.admission.queue import FREE, Queue, Slot
from blade_router.client import Client
from blade_router.distribution import Distribution
from blade_router.endpoints import EndpointSet
from blade_router.request import ClientRequest
from blade_router.usage import Usage

TOKENS = 16
"""What an answer is thought to have where a request does not say it."""


class WaitingRooms:
    """The queue of each service, made when it is first asked for, and one place to hold requests."""

    def __init__(self, endpoints: EndpointSet) -> None:
        self._endpoints = endpoints
        self._config = QueueConfig()
        self._routers = 1
        self.queues: dict[str, Queue] = {}
        self.waited = Distribution()
        """Seconds requests waited in queues; those that had to."""
        endpoints.listeners.append(self._measure)
        # It listens after the queues: they know of a new endpoint's room when it releases what it holds.
        self.holding = Holding(endpoints)

    def configure(self, queue: QueueConfig, hold: HoldConfig, routers: int = 1) -> None:
        """Take over new limits. ``routers`` processes share what the engines of a service may have."""
        self._config, self._routers = queue, routers
        for each in self.queues.values():
            each.configure(queue, routers)
        self.holding.configure(hold)

    def queue(self, service: str = "") -> Queue:
        """The queue of that service."""
        queue = self.queues.get(service)
        if queue is None:
            queue = Queue(self._endpoints, service, self._config, waited=self.waited)
            queue.configure(self._config, self._routers)
            self.queues[service] = queue
        return queue

    def _measure(self) -> None:
        for queue in self.queues.values():
            queue.measure()


class WaitingTicket(Ticket):
    """A ticket with a slot."""

    def __init__(self, slot: Slot = FREE, service: str = "") -> None:
        self.slot = slot
        self.service = service

    def close(self, usage: Usage | None) -> None:
        self.slot.leave()


class WaitingGate:
    """Lets everyone in, one after the other: queues and holding without keys and limits."""

    def __init__(self, rooms: WaitingRooms) -> None:
        self._rooms = rooms

    async def admit(self, request: ClientRequest, client: Client) -> Ticket:
        fields = request.fields
        tokens = len(request.body) // 4 + (fields.token_limit or TOKENS) * fields.samples
        slot = await self._rooms.queue().enter(
            "", 1.0, fields.priority or 0, len(request.body), tokens, client, bool(fields.stream)
        )
        return WaitingTicket(slot)

    async def hold(self, request: ClientRequest, client: Client, ticket: Ticket) -> bool:
        slot = ticket.slot if isinstance(ticket, WaitingTicket) else FREE
        size, streams = len(request.body), bool(request.fields.stream)
        return await self._rooms.holding.hold(slot, ticket.service, size, client, streams)
