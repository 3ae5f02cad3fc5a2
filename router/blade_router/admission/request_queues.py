"""The request queues of all services and the pending-request buffer, made and configured together."""

from blade_protocol.routing import HoldConfig, QueueConfig
from blade_router.admission.interface import Admission
from blade_router.admission.pending_buffer import PendingBuffer
from blade_router.admission.request_queue import UNQUEUED, RequestQueue
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.http.client import Client
from blade_router.request.request import ClientRequest
from blade_router.statistics.distribution import Distribution


class RequestQueues:
    """The queue of each service, made when it is first used, and one buffer for pending requests."""

    def __init__(self, endpoints: EndpointSet) -> None:
        self._endpoints = endpoints
        self._config = QueueConfig()
        self._has_pending_buffer = False
        self._routers = 1
        self.queues: dict[str, RequestQueue] = {}
        self.waited = Distribution()
        """Seconds requests waited in queues; those that had to."""
        endpoints.listeners.append(self._update_capacity)
        # It listens after the queues: they know a new endpoint's capacity when it releases pending requests.
        self.pending = PendingBuffer(endpoints)

    def configure(self, queue: QueueConfig, hold: HoldConfig) -> None:
        """Take over new limits."""
        self._config = queue
        self._has_pending_buffer = hold.max_requests > 0
        for each in self.queues.values():
            each.configure(queue, self._routers, self._has_pending_buffer)
        self.pending.configure(hold)

    def split(self, routers: int) -> None:
        """Share the capacity of each service's engines between so many processes."""
        self._routers = routers
        for each in self.queues.values():
            each.configure(self._config, routers, self._has_pending_buffer)

    def queue(self, service: str = "") -> RequestQueue:
        """The queue of that service."""
        queue = self.queues.get(service)
        if queue is None:
            queue = RequestQueue(self._endpoints, service, self._config, waited=self.waited)
            queue.configure(self._config, self._routers, self._has_pending_buffer)
            self.queues[service] = queue
        return queue

    async def wait_for_endpoint(self, request: ClientRequest, client: Client, admission: Admission) -> bool:
        """Buffer a request until an endpoint of its service is usable; see ``AdmissionControl.wait_for_endpoint``."""
        queued = admission.queued or UNQUEUED
        streams = bool(request.fields.stream)
        return await self.pending.wait(
            queued, admission.service, len(request.body), client, streams, key=admission.key_name
        )

    def _update_capacity(self) -> None:
        for queue in self.queues.values():
            queue.update_capacity()
