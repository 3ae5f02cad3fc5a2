"""All endpoints of the router: following the configuration, candidates for a request, and slow start."""

import logging
import time
from collections.abc import Callable, Collection, Iterable
from functools import partial

from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.attempt import Attempt, Choice, Request
from blade_router.endpoints.confinement import Confinement
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.moved_responses import MovedResponses
from blade_router.http.client import Client
from blade_router.http.upstream.pool import ConnectionPool

logger = logging.getLogger("blade_router.endpoints")

MAX_EJECTION_SHARE = 0.5
"""The part of a service's endpoints that outlier ejection may take out at the same time; the rest stays in."""
ADAPTER_SECONDS = 30.0
"""For how long an adapter may be missing on engines that were woken: they are given theirs once they are healthy."""


class EndpointSet:
    """The endpoints in the order of the configuration.

    Args:
        connect_timeout: seconds a connection to one of them may take.
        slow_start: seconds over which the weight of an endpoint that has become usable rises to 1.
    """

    def __init__(self, *, connect_timeout: float = 1.0, slow_start: float = 0.0) -> None:
        self._connect_timeout = connect_timeout
        self._slow_start = slow_start
        self._warming: list[Endpoint] = []
        self.confinement = Confinement()
        """Keys that may not use all endpoints."""
        self.moved_responses = MovedResponses()
        self.all: list[Endpoint] = []
        self.declared_adapters: frozenset[str] = frozenset()
        """Adapters that engines are to have, whether they have them or not."""
        self.adapter_seconds = 0.0
        """For how long requests wait for an adapter that engines lack which have just become healthy."""
        self.weightless: frozenset[str] = frozenset()
        """Revisions of which no request goes to an endpoint while there is another."""
        self.listeners: list[Callable[[], None]] = []
        """Called whenever an endpoint may have become usable, or stopped to be."""

    def update(self, configs: Iterable[EndpointConfig]) -> list[Endpoint]:
        """Follow the configuration; returns the endpoints that are new.

        An endpoint whose URL stays keeps its connections and its record; but one that is another kind of engine, or
        publishes its KV events elsewhere, is another endpoint. One that goes away gets no new request and finishes
        those it has.
        """
        known = {(endpoint.url, endpoint.config.engine, endpoint.config.kv_events): endpoint for endpoint in self.all}
        current: list[Endpoint] = []
        new: list[Endpoint] = []
        for config in configs:
            endpoint = known.pop((config.url, config.engine, config.kv_events), None)
            if endpoint is None:
                endpoint = Endpoint(config, connect_timeout=self._connect_timeout)
                endpoint.health.on_change = self.notify
                endpoint.health.can_eject = partial(self._can_eject, endpoint)
                new.append(endpoint)
                logger.info("endpoint %s added (%s)", endpoint.name, endpoint.url)
            else:
                endpoint.configure(config)
            current.append(endpoint)
        for endpoint in known.values():
            logger.info("endpoint %s removed", endpoint.name)
            endpoint.removed = True
            endpoint.pool.close()
            endpoint.health.check_now()
        self.all = current
        self.notify()
        return new

    def candidates(
        self, tried: Collection[Endpoint] = (), service: str = "", adapter: str | None = None, key: str = ""
    ) -> tuple[list[Endpoint], bool]:
        """Endpoints of a service a request may go to, and whether this is panic mode.

        ``adapter`` is the model a request names where only engines that have it loaded may answer (``Policy.adapter``).
        As long as any endpoint has an adapter of that name, tried and lost ones included, or is to have it, it goes to
        no other: those would answer 404, which is final. Otherwise it is the name of no adapter, and all of them serve
        it.

        Usable ones first. When there is none, everything that is not draining: their health may be judged wrongly, and
        a request that fails costs no more than one that is not sent (panic mode). Of a confined ``key`` only those that
        it is confined to.
        """
        now = time.monotonic()
        if self._warming:
            self._warm_up(now)
        left = self.of_service(service)
        confinement = self.confinement
        everywhere = left if confinement.needed else None
        if adapter:
            having = [endpoint for endpoint in left if adapter in endpoint.report.adapters]
            if having or adapter in self.declared_adapters:
                left = having
        if tried:
            left = [endpoint for endpoint in left if endpoint not in tried]
        # `Endpoint.usable`, written out: the call for each candidate is felt.
        usable = [
            endpoint
            for endpoint in left
            if (health := endpoint.health).up is True
            and (health.breaker.closed or health.breaker.allows(now))
            and not (health.draining or endpoint.config.draining)
        ]
        panic = not usable
        if panic:
            usable = [endpoint for endpoint in left if endpoint.admits]
        if everywhere is not None:
            usable = confinement.allowed(usable, everywhere, key)
        return usable, panic

    def lacks_adapter(self, adapter: str | None, service: str) -> bool:
        """Whether endpoints of a service are to have this adapter, and none of them has it."""
        if adapter is None or adapter not in self.declared_adapters:
            return False
        endpoints = self.of_service(service)
        return bool(endpoints) and not any(adapter in endpoint.report.adapters for endpoint in endpoints)

    def misses_adapter(self, adapter: str | None, service: str) -> bool:
        """Whether endpoints of a service lack an adapter, and nothing says that one of them has it shortly."""
        return self.lacks_adapter(adapter, service) and not self.awaits_adapter(adapter, service)

    def awaits_adapter(self, adapter: str | None, service: str) -> bool:
        """Whether an adapter that endpoints of a service lack may be there shortly: none has been healthy for long."""
        if not self.lacks_adapter(adapter, service):
            return False
        since = time.monotonic() - self.adapter_seconds
        endpoints = [endpoint for endpoint in self.of_service(service) if endpoint.admits and endpoint.health.up]
        return all(endpoint.health.up_since > since for endpoint in endpoints)

    def attempt(self, choice: Choice, request: Request, client: Client, pool: ConnectionPool | None = None) -> Attempt:
        """One try of a request at the chosen endpoint, to be entered with ``with``.

        Args:
            pool: connections to use instead of those to the endpoint's public port.
        """
        return Attempt(choice, request, client, pool)

    def usable_count(self, service: str | None = None) -> int:
        """The number of usable endpoints, of one service or of all."""
        now = time.monotonic()
        return sum(
            endpoint.usable(now) for endpoint in self.all if service is None or endpoint.config.service == service
        )

    def of_service(self, service: str) -> list[Endpoint]:
        """All endpoints of a service, whatever their health."""
        return [endpoint for endpoint in self.all if endpoint.config.service == service]

    def serving(self, service: str) -> list[Endpoint]:
        """Those that share a service's load: the usable ones, or, in panic mode, all that do not drain."""
        now = time.monotonic()
        of_service = self.of_service(service)
        usable = [endpoint for endpoint in of_service if endpoint.usable(now)]
        if self.weightless and (weighty := [each for each in usable if each.revision not in self.weightless]):
            return weighty
        return usable or [endpoint for endpoint in of_service if endpoint.admits]

    def notify(self) -> None:
        """Call the listeners: an endpoint may have become usable, or stopped to be."""
        now = time.monotonic()
        self._warming = [endpoint for endpoint in self.all if endpoint.health.warming_since]
        self._warm_up(now)
        for listener in self.listeners:
            listener()

    def _warm_up(self, now: float) -> None:
        """Let the weights of endpoints in slow start rise."""
        self._warming = [endpoint for endpoint in self._warming if endpoint.health.warm_up(now, self._slow_start)]

    def _can_eject(self, endpoint: Endpoint) -> bool:
        """Enough other endpoints of its service stay in."""
        service = endpoint.config.service
        siblings = [each for each in self.all if each.config.service == service]
        ejected = sum(not each.health.breaker.closed for each in siblings if each is not endpoint)
        return ejected + 1 <= MAX_EJECTION_SHARE * len(siblings)
