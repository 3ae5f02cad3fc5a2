"""What the HTTP server has in hand, for the metrics."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from blade_protocol import metrics as names


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
        yield GaugeMetricFamily(names.ROUTER_CONNECTIONS, "Open connections of clients.", value=self.connections)
        yield CounterMetricFamily(
            names.ROUTER_EVICTED_CONNECTIONS, "Connections closed to make room for new ones.", value=self.evicted
        )
        yield GaugeMetricFamily(names.ROUTER_BODY_BYTES, "Memory of request bodies in flight.", value=self.body_bytes)
