"""What the router counts. The hot path adds plain numbers; Prometheus' shape is made when someone asks.

A labelled prometheus-client counter costs more per request than choosing an endpoint does.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from blade_protocol import metrics as names
from blade_router.endpoints import EndpointSet

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds in seconds."""


class Histogram:
    """Counts per bucket, and the sum of what was observed, in seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS, seconds)] += 1
        self._sum += seconds

    def family(self, name: str, text: str) -> HistogramMetricFamily:
        cumulative = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), self._counts, strict=True):
            cumulative += count
            buckets.append((bound, cumulative))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum)


class Metrics:
    """The router's counters, and a Prometheus collector over them."""

    def __init__(self, endpoints: EndpointSet) -> None:
        self._endpoints = endpoints
        self.in_flight = 0
        self.requests: defaultdict[int, int] = defaultdict(int)
        """Finished requests by status; 499 when the client left."""
        self.retries: defaultdict[str, int] = defaultdict(int)
        """Requests sent to another endpoint, by what was wrong with the one before."""
        self.resumes: defaultdict[str, int] = defaultdict(int)
        """Streams whose engine was lost after their first byte, by what became of them: ``resumed``; ``refused`` by the
        replica that was asked; ``failed`` on all that were; ``nobody`` was there to ask; ``unknown`` what was sent."""
        self.first_byte = Histogram()
        self.duration = Histogram()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(names.ROUTER_REQUESTS, "Finished requests by status.", labels=["code"])
        for status, count in sorted(self.requests.items()):
            requests.add_metric([str(status)], count)
        yield requests
        retries = CounterMetricFamily(names.ROUTER_RETRIES, "Requests sent on to another endpoint.", labels=["reason"])
        for reason, count in sorted(self.retries.items()):
            retries.add_metric([reason], count)
        yield retries
        resumes = CounterMetricFamily(names.ROUTER_RESUMES, "Streams that lost their engine.", labels=["outcome"])
        for outcome, count in sorted(self.resumes.items()):
            resumes.add_metric([outcome], count)
        yield resumes
        yield GaugeMetricFamily(names.ROUTER_IN_FLIGHT, "Requests under way.", value=self.in_flight)
        yield self.first_byte.family(names.ROUTER_TTFT, "From the request to the first byte of its answer.")
        yield self.duration.family(names.ROUTER_E2E, "From the request to the last byte of its answer.")
        up = GaugeMetricFamily(names.ROUTER_ENDPOINT_UP, "1 when the active check passed.", labels=["endpoint"])
        busy = GaugeMetricFamily(names.ROUTER_ENDPOINT_IN_FLIGHT, "Requests under way on it.", labels=["endpoint"])
        for endpoint in self._endpoints.all:
            up.add_metric([endpoint.name], float(endpoint.up is True))
            busy.add_metric([endpoint.name], endpoint.in_flight)
        yield up
        yield busy
