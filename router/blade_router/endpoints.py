"""The engine replicas the router may choose from, and what it believes about each of them.

Three sources of belief meet here: the configuration (which replicas exist, which are draining), the active health
check (``mark_up``/``mark_down``), and the outcome of real requests (``record_success``/``record_failure``: passive
ejection). Nothing here does I/O.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from urllib.parse import urlsplit

from blade_protocol.routing import EndpointConfig
from blade_router.pool import ConnectionPool
from blade_router.upstream import ConnectFailed, UpstreamError

logger = logging.getLogger("blade_router.endpoints")

EJECT_AFTER = 3
"""Consecutive failures from which on an endpoint is ejected."""
EJECT_FIRST = 0.5
EJECT_MOST = 30.0
"""Seconds of the first and of the longest ejection; each further failure doubles it."""


def ejection_seconds(failures: int) -> float:
    """How long an endpoint stays out after that many consecutive failures."""
    if failures < EJECT_AFTER:
        return 0.0
    return min(EJECT_MOST, EJECT_FIRST * 2.0 ** min(failures - EJECT_AFTER, 16))


class Endpoint:
    """One replica: its configuration, its connections, its load and its health."""

    def __init__(self, config: EndpointConfig, *, connect_timeout: float = 1.0) -> None:
        parts = urlsplit(config.url)
        host, port = parts.hostname or "", parts.port or 80
        self.url = config.url
        self.authority = parts.netloc.encode("ascii")
        self.pool = ConnectionPool(host, port, connect_timeout=connect_timeout)
        self.in_flight = 0
        self.name = ""
        self.revision = ""
        self.up: bool | None = None
        """What the active check said last; None before the first."""
        self.failures = 0
        """Consecutive failed requests."""
        self.ejected_until = 0.0
        self.engine_draining = False
        """The engine itself said so on a 503."""
        self.adapters: frozenset[str] = frozenset()
        """LoRA names it serves beside its model."""
        self.removed = False
        self.suspect: Callable[[], None] = lambda: None
        """Asks the active check to look at once; set by the health checker."""
        self.configure(config)

    def configure(self, config: EndpointConfig) -> None:
        """Take over what may change while the URL stays."""
        name = config.name or config.url
        if config.revision or name != self.name:  # otherwise one that the engine told stays
            self.revision = config.revision
        self.name = name
        self.name_header = name.encode("ascii")
        self.internal_url = config.internal_url
        self.draining = config.draining
        self.service = config.service
        self.engine = config.engine
        self.kv_events = config.kv_events

    @property
    def admits(self) -> bool:
        """It may get new requests as far as draining goes."""
        return not (self.draining or self.engine_draining)

    def usable(self, now: float) -> bool:
        """Healthy, not ejected, not draining."""
        return self.up is True and self.ejected_until <= now and not self.draining and not self.engine_draining

    # active health

    def mark_up(self) -> None:
        """The active check passed. A replica that was down starts with a clean record."""
        if self.up is not True:
            logger.info("endpoint %s is up", self.name)
            self.failures = 0
            self.ejected_until = 0.0
        self.up = True
        self.engine_draining = False

    def mark_down(self, why: str) -> None:
        if self.up is not False:
            logger.warning("endpoint %s is down: %s", self.name, why)
        self.up = False

    def mark_draining(self) -> None:
        """The engine answered that it drains: nothing new for it until its health check passes again."""
        if not self.engine_draining:
            logger.info("endpoint %s is draining", self.name)
            self.engine_draining = True
            self.suspect()

    # passive health

    def record_success(self) -> None:
        """It answered a request, with whatever status below 500."""
        if self.failures:
            self.failures = 0
            self.ejected_until = 0.0

    def record_failure(self, why: str, error: UpstreamError | None = None) -> None:
        """A request failed on it: no answer (``error``), or a 5xx.

        A connection that is refused, or has nowhere to go, takes it out until the active check passes again. Other
        failures eject it from the third in a row on; those of requests already under way when it was ejected are the
        same event and do not count.
        """
        self.suspect()
        if isinstance(error, ConnectFailed) and error.absent:
            self.mark_down(why)
            return
        now = time.monotonic()
        if now < self.ejected_until:
            return
        self.failures += 1
        seconds = ejection_seconds(self.failures)
        if seconds:
            self.ejected_until = now + seconds
            logger.warning("endpoint %s ejected for %g s after %d failures: %s", self.name, seconds, self.failures, why)


class EndpointSet:
    """The endpoints in the order of the configuration."""

    def __init__(self, *, connect_timeout: float = 1.0) -> None:
        self._connect_timeout = connect_timeout
        self.all: list[Endpoint] = []

    def update(self, configs: Iterable[EndpointConfig]) -> list[Endpoint]:
        """Follow the configuration; returns the endpoints that are new.

        An endpoint whose URL stays keeps its connections and its record. One that goes away gets no new request and
        finishes those it has.
        """
        known = {endpoint.url: endpoint for endpoint in self.all}
        current: list[Endpoint] = []
        new: list[Endpoint] = []
        for config in configs:
            endpoint = known.pop(config.url, None)
            if endpoint is None:
                endpoint = Endpoint(config, connect_timeout=self._connect_timeout)
                new.append(endpoint)
                logger.info("endpoint %s added (%s)", endpoint.name, endpoint.url)
            else:
                endpoint.configure(config)
            current.append(endpoint)
        for endpoint in known.values():
            logger.info("endpoint %s removed", endpoint.name)
            endpoint.removed = True
            endpoint.pool.close()
            endpoint.suspect()
        self.all = current
        return new

    def candidates(self, tried: Collection[Endpoint] = (), service: str = "") -> tuple[list[Endpoint], bool]:
        """Endpoints of a service a request may go to, and whether this is panic mode.

        Usable ones first. When there is none, everything that is not draining: our belief may be wrong, and a request
        that fails costs no more than one that is not sent (panic mode).
        """
        now = time.monotonic()
        left = [endpoint for endpoint in self.all if endpoint.service == service and endpoint not in tried]
        usable = [endpoint for endpoint in left if endpoint.usable(now)]
        if usable:
            return usable, False
        return [endpoint for endpoint in left if endpoint.admits], True

    def usable_count(self) -> int:
        now = time.monotonic()
        return sum(endpoint.usable(now) for endpoint in self.all)
