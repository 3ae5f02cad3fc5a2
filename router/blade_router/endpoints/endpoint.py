"""One engine replica the router may choose: its configuration, its load report, its health and its connections."""

import hashlib
from urllib.parse import urlsplit

from blade_protocol import ports
from blade_protocol.routing import EndpointConfig
from blade_router.endpoints.endpoint_health import EndpointHealth
from blade_router.endpoints.load_report import LoadReport
from blade_router.endpoints.prefill_clock import PrefillClock
from blade_router.http.upstream.pool import ConnectionPool

UNLIMITED = 1 << 30
"""The number of requests that an engine takes which reports neither slots nor a queue of its own."""


def public_name(name: str) -> str:
    """The name of an endpoint for clients: an address is none of their business."""
    return name if "/" not in name else "engine-" + hashlib.sha256(name.encode("ascii")).hexdigest()[:8]


class Endpoint:
    """One replica. ``config`` is written by the configuration, ``report`` by ``engines``, ``health`` by health checks
    and the outcome of attempts, what is in flight by attempts, ``prefill`` by policies."""

    __slots__ = (
        "authority",
        "backlog_tokens",
        "config",
        "health",
        "in_flight",
        "name",
        "name_header",
        "pool",
        "prefill",
        "public_name",
        "removed",
        "report",
        "response_tag",
        "room",
        "suspects",
        "tokens_in_flight",
        "url",
    )

    def __init__(self, config: EndpointConfig, *, connect_timeout: float = 1.0) -> None:
        parts = urlsplit(config.url)
        self.url = config.url
        self.authority = parts.netloc.encode("ascii")
        self.pool = ConnectionPool(parts.hostname or "", parts.port or 80, connect_timeout=connect_timeout)
        self.report = LoadReport()
        self.health = EndpointHealth()
        self.prefill = PrefillClock()
        """How fast it computes prompts and what it has to compute, as requests of this router have shown."""
        self.in_flight = 0
        """Requests of this router on it."""
        self.backlog_tokens = 0
        """Prompt tokens it has yet to compute for them: not in its prefix cache, and no first byte yet."""
        self.tokens_in_flight = 0
        """Prompt and output tokens those requests may take, as far as policies estimate them."""
        self.room = UNLIMITED
        """Requests of this router that it may have; those beyond wait in it."""
        self.suspects = 0
        """Requests on it that are tried for having killed an engine."""
        self.removed = False
        self.name = ""
        self.configure(config)

    def configure(self, config: EndpointConfig) -> None:
        """Take over what may change while it stays the same endpoint."""
        name = config.name or config.url
        if name != self.name:  # another pod at the same address
            self.report.forget_revision()
        self.config = config
        self.name = self.health.name = name
        self.name_header = name.encode("ascii")
        self.response_tag = hashlib.sha256(b"responses of " + self.name_header).hexdigest()[:8]
        """Begins the ids of the responses that it keeps, by which routers find it; it does not tell the name."""
        self.public_name = public_name(name).encode("ascii")
        """The same for clients."""

    @property
    def revision(self) -> str:
        """The revision as configured; else as the engine reports it."""
        return self.config.revision or self.report.revision

    @property
    def internal_origin(self) -> str:
        """The base URL of its internal port: as configured, else the public port's number plus the usual."""
        if self.config.internal_url:
            return self.config.internal_url
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"http://{host}:{(parts.port or 80) + ports.INTERNAL_PORT_OFFSET}"

    @property
    def admits(self) -> bool:
        """It may get new requests as far as draining goes, and its start."""
        return not (self.config.draining or self.config.starting or self.health.draining)

    def usable(self, now: float) -> bool:
        """It is healthy, not ejected, not draining."""
        health = self.health
        breaker = health.breaker
        return (
            health.up is True
            and (breaker.closed or breaker.allows(now))
            and not self.config.draining
            and not health.draining
        )
