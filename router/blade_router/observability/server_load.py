"""What the HTTP server has in hand, for the metrics."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Metric

from blade_protocol import metrics as names
from blade_router.observability.catalogue import counter, gauge


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """The load of one server."""

    connections: int = 0
    """Open connections of clients."""
    evicted: int = 0
    """Connections closed to make room for new ones, since the start."""
    body_bytes: int = 0
    """Bytes of request bodies in flight."""

    def families(self) -> Iterator[Metric]:
        """The metrics of it."""
        yield gauge(names.ROUTER_CONNECTIONS, self.connections)
        yield counter(names.ROUTER_EVICTED_CONNECTIONS, self.evicted)
        yield gauge(names.ROUTER_BODY_BYTES, self.body_bytes)
