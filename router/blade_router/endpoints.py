"""The engine replicas the router may choose from, and what it believes about each of them.

Three sources of belief meet here: the configuration (which replicas exist, which are draining), the active health
check (``mark_up``/``mark_down``), and the outcome of real requests (``record_success``/``record_failure``: passive
ejection). Nothing here does I/O.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial
from urllib.parse import urlsplit

from blade_protocol import ports
from blade_protocol.routing import EndpointConfig
from blade_router.breaker import Breaker
from blade_router.pool import ConnectionPool
from blade_router.upstream_errors import ConnectFailed, UpstreamError

logger = logging.getLogger("blade_router.endpoints")

COLD_WEIGHT = 0.1
"""Weight of an endpoint that has just become usable."""
MAX_EJECTED = 0.5
"""The part of a service's endpoints that failed requests may leave out at the same time; the rest stays in."""


class Endpoint:
    """One replica: its configuration, its connections, its load and its health."""

    def __init__(self, config: EndpointConfig, *, connect_timeout: float = 1.0) -> None:
        parts = urlsplit(config.url)
        host, port = parts.hostname or "", parts.port or 80
        self.url = config.url
        self.authority = parts.netloc.encode("ascii")
        self.pool = ConnectionPool(host, port, connect_timeout=connect_timeout)
        self.in_flight = 0
        """Requests of this router on it."""
        self.backlog_tokens = 0
        """Prompt tokens it has yet to compute for them: not in its prompt cache, and no first byte yet."""
        self.tokens_in_flight = 0
        """Prompt and answer tokens those requests may take, as far as policies estimate them."""
        # What it reports about itself.
        self.running = 0
        self.waiting = 0
        """Requests of all routers."""
        self.kv_usage: float | None = None
        """Share of its KV cache that running requests hold, 0 to 1."""
        self.capacity = 0
        """Requests it can run at the same time; 0: unknown."""
        self.cache_tokens = 0
        """Tokens that its KV cache, and so its prompt cache, has room for; 0: unknown."""
        self.models: frozenset[str] = frozenset()
        """Names it serves, those of adapters included."""
        self.adapters: frozenset[str] = frozenset()
        """Names of the adapters it has loaded."""
        self.told_at = 0.0
        """When it reported last, or said that nothing changed (``time.monotonic``); 0: never."""
        self.name = ""
        self.revision = ""
        """As configured; else as the engine tells."""
        self._configured_revision = ""
        self._told_revision = ""
        self.up: bool | None = None
        """What the active check said last; None before the first."""
        self.breaker = Breaker()
        self.weight = 1.0
        """How much of the load it should get, next to others: rises from ``COLD_WEIGHT`` to 1 after it has become
        usable. Policies divide its load by it."""
        self.warm_from = 0.0
        """Since when it rises (monotonic); 0 when it does not."""
        self.engine_draining = False
        """The engine itself said so on a 503."""
        self.removed = False
        self.suspect: Callable[[], None] = lambda: None
        """Asks the active check to look at once; set by the health checker."""
        self.changed: Callable[[], None] = lambda: None
        """Called when it may have become usable, or stopped to be; set by its ``EndpointSet``."""
        self.may_eject: Callable[[], bool] = lambda: True
        """Whether its service can do without one more; set by its ``EndpointSet``."""
        self.configure(config)

    def configure(self, config: EndpointConfig) -> None:
        """Take over what may change while it stays the same endpoint."""
        name = config.name or config.url
        if name != self.name:  # another pod at the same address
            self._told_revision = ""
        self._configured_revision = config.revision
        self.revision = config.revision or self._told_revision
        self.name = name
        self.name_header = name.encode("ascii")
        self.internal_url = config.internal_url
        self.draining = config.draining
        self.service = config.service
        self.engine = config.engine
        self.kv_events = config.kv_events

    def tell_revision(self, revision: str) -> None:
        """The engine says what it is; that counts where nothing is configured."""
        self._told_revision = revision
        self.revision = self._configured_revision or revision

    @property
    def internal_origin(self) -> str:
        """The base URL of its internal port: as configured, else the public port's number plus the usual."""
        if self.internal_url:
            return self.internal_url
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"http://{host}:{(parts.port or 80) + ports.INTERNAL_PORT_OFFSET}"

    @property
    def admits(self) -> bool:
        """It may get new requests as far as draining goes."""
        return not (self.draining or self.engine_draining)

    def usable(self, now: float) -> bool:
        """Healthy, not ejected, not draining."""
        breaker = self.breaker
        return (
            self.up is True
            and (breaker.closed or breaker.lets_through(now))
            and not self.draining
            and not self.engine_draining
        )

    @property
    def failures(self) -> int:
        """Consecutive failed requests."""
        return self.breaker.failures

    @property
    def ejected_until(self) -> float:
        """Until when its breaker is open (monotonic)."""
        return self.breaker.open_until

    # active health

    def mark_up(self) -> None:
        """The active check passed. A replica that was down starts with a clean record."""
        if self.up is True and not self.engine_draining:
            return
        if self.up is False:
            logger.info("endpoint %s is up", self.name)
            self.breaker.reset()
        self.up = True
        self.engine_draining = False
        self.warm_from = time.monotonic()
        self.changed()

    def mark_down(self, why: str) -> None:
        if self.up is False:
            return
        logger.warning("endpoint %s is down: %s", self.name, why)
        self.up = False
        self.changed()

    def mark_draining(self) -> None:
        """The engine answered that it drains: nothing new for it until its health check passes again."""
        if not self.engine_draining:
            logger.info("endpoint %s is draining", self.name)
            self.engine_draining = True
            self.suspect()
            self.changed()

    # passive health

    def record_success(self) -> None:
        """It answered a request, with whatever status below 500."""
        if self.breaker.succeed():
            logger.info("endpoint %s answers again", self.name)
            self.warm_from = time.monotonic()
            self.changed()

    def record_failure(self, why: str, error: UpstreamError | None = None) -> None:
        """A request failed on it: no answer (``error``), or a 5xx.

        A connection that is refused, or has nowhere to go, takes it out until the active check passes again. Other
        failures eject it from the third in a row on.
        """
        self.suspect()
        if isinstance(error, ConnectFailed) and error.absent:
            self.mark_down(why)
            return
        if seconds := self.breaker.fail(time.monotonic(), self.may_eject()):
            logger.warning("endpoint %s ejected for %g s after %d failures: %s", self.name, seconds, self.failures, why)
            self.changed()

    def record_undecided(self, why: str) -> None:
        """It answered 5xx to a request that no other endpoint answered better: that weighs little."""
        if seconds := self.breaker.undecided(time.monotonic(), self.may_eject()):
            logger.warning("endpoint %s ejected for %g s: again and again %s", self.name, seconds, why)
            self.changed()

    def pause(self, seconds: float) -> None:
        """The engine asked for a pause (``Retry-After`` on a 503): that is no failure."""
        if self.may_eject() and self.breaker.pause(time.monotonic(), seconds):
            self.changed()


def settle(failed: Iterable[Endpoint], *, answered: bool) -> None:
    """Say whose fault it was that these endpoints answered a request with 5xx.

    Theirs, if another endpoint ``answered`` it. If none did it may as well be the request, sent again and again by its
    client: one such request must not take every endpoint out, so this counts a fourth.
    """
    for endpoint in failed:
        if answered:
            endpoint.record_failure("it answered 5xx where another endpoint did not")
        else:
            endpoint.record_undecided("it answered 5xx")


class EndpointSet:
    """The endpoints in the order of the configuration.

    Args:
        connect_timeout: seconds to connect to one.
        slow_start: seconds in which the weight of an endpoint that has become usable rises to 1; 0: it is 1 at once.
    """

    def __init__(self, *, connect_timeout: float = 1.0, slow_start: float = 0.0) -> None:
        self._connect_timeout = connect_timeout
        self._slow_start = slow_start
        self._warming: list[Endpoint] = []
        self.all: list[Endpoint] = []
        self.listeners: list[Callable[[], None]] = []
        """Called whenever an endpoint may have become usable, or stopped to be."""

    def update(self, configs: Iterable[EndpointConfig]) -> list[Endpoint]:
        """Follow the configuration; returns the endpoints that are new.

        An endpoint whose URL stays keeps its connections and its record; but one that is another kind of engine, or
        tells of its cache elsewhere, is another endpoint. One that goes away gets no new request and finishes those
        it has.
        """
        known = {(endpoint.url, endpoint.engine, endpoint.kv_events): endpoint for endpoint in self.all}
        current: list[Endpoint] = []
        new: list[Endpoint] = []
        for config in configs:
            endpoint = known.pop((config.url, config.engine, config.kv_events), None)
            if endpoint is None:
                endpoint = Endpoint(config, connect_timeout=self._connect_timeout)
                endpoint.changed = self.tell
                endpoint.may_eject = partial(self._may_eject, endpoint)
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
        self.tell()
        return new

    def candidates(
        self, tried: Collection[Endpoint] = (), service: str = "", adapter: str | None = None
    ) -> tuple[list[Endpoint], bool]:
        """Endpoints of a service a request may go to, and whether this is panic mode.

        ``adapter`` is the model a request names where only engines that have it loaded may answer (``Policy.adapter``).
        As long as any endpoint has an adapter of that name, tried and lost ones included, it goes to no other: those
        would answer 404, which is final. Otherwise it is the name of no adapter, and all of them serve it.

        Usable ones first. When there is none, everything that is not draining: our belief may be wrong, and a request
        that fails costs no more than one that is not sent (panic mode).
        """
        now = time.monotonic()
        if self._warming:
            self._warm(now)
        left = [endpoint for endpoint in self.all if endpoint.service == service]
        if adapter:
            left = [endpoint for endpoint in left if adapter in endpoint.adapters] or left
        if tried:
            left = [endpoint for endpoint in left if endpoint not in tried]
        usable = [endpoint for endpoint in left if endpoint.usable(now)]
        if usable:
            return usable, False
        return [endpoint for endpoint in left if endpoint.admits], True

    def usable_count(self, service: str | None = None) -> int:
        """Of one service, or of all."""
        now = time.monotonic()
        return sum(endpoint.usable(now) for endpoint in self.all if service is None or endpoint.service == service)

    def serving_count(self, service: str) -> int:
        """How many share a service's load: the usable ones, or, in panic, all that do not drain."""
        usable = self.usable_count(service)
        return usable or sum(endpoint.admits for endpoint in self.all if endpoint.service == service)

    def tell(self) -> None:
        """Call the listeners: an endpoint may have become usable, or stopped to be."""
        now = time.monotonic()
        self._warming = [endpoint for endpoint in self.all if endpoint.warm_from]
        self._warm(now)
        for listener in self.listeners:
            listener()

    def _warm(self, now: float) -> None:
        """Let the weights rise."""
        for endpoint in self._warming:
            passed = now - endpoint.warm_from
            if passed >= self._slow_start:
                endpoint.weight, endpoint.warm_from = 1.0, 0.0
            else:
                endpoint.weight = COLD_WEIGHT + (1.0 - COLD_WEIGHT) * passed / self._slow_start
        self._warming = [endpoint for endpoint in self._warming if endpoint.warm_from]

    def _may_eject(self, endpoint: Endpoint) -> bool:
        """Its service keeps enough others."""
        peers = [each for each in self.all if each.service == endpoint.service]
        out = sum(not each.breaker.closed for each in peers if each is not endpoint)
        return out + 1 <= MAX_EJECTED * len(peers)
