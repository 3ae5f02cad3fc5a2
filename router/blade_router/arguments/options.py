"""The options of a router process."""

from dataclasses import dataclass, field
from pathlib import Path

from blade_protocol import limits, ports
from blade_protocol.routing import EndpointConfig, PolicyName
from blade_router.engines import kv_index
from blade_router.http.accept.connection_table import MAX_CONNECTIONS
from blade_router.http.accept.trusted_proxies import TrustedProxies
from blade_router.kubernetes import Cluster
from blade_router.policies.prefix_cache.prefix_index import DEFAULT_BYTES
from blade_router.workers.supervisor import Worker
from blade_telemetry.logs import LogFormat


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a router process. Times are in seconds; 0 means no limit where it says so."""

    host: str = "127.0.0.1"
    port: int = ports.ROUTER_PORT
    admin_host: str = "127.0.0.1"
    admin_port: int = ports.ROUTER_ADMIN_PORT
    """Where metrics, status and signals are."""
    listen_fd: int | None = None
    """An inherited listening socket to accept from as well."""
    endpoints: tuple[EndpointConfig, ...] = ()
    config: Path | None = None
    service: Path | str | None = None
    """Where to watch endpoints: a file with them, or the name of a Service in ``cluster``."""
    services: tuple[Path | str, ...] = ()
    """The same where there are several: each endpoint gets the name of its own."""
    config_map: str | None = None
    """Name of a ConfigMap in ``cluster``."""
    cluster: Cluster | None = None
    """The Kubernetes API through which Services, ``config_map``, ``keys_secret`` and ``peers`` are watched."""
    keys: Path | None = None
    """A file with API keys, or a folder of them."""
    keys_secret: str | None = None
    """Name of a Secret in ``cluster`` with API keys."""
    peers: Path | str | tuple[str, ...] | None = None
    """The replicas of this router, which share every limit: a file with them, the name of their Service in ``cluster``,
    or the base URLs of their internal routes, this router's among them."""
    replica_sync: bool = True
    """Replicas and workers tell each other what they have sent where."""
    replicas: int = 1
    """Routers that share every limit, where there are no ``peers`` to count."""
    allow_client_priority: bool = False
    """Without keys: requests may have a priority below 0."""
    policy: PolicyName | None = None
    cost: str = ""
    """``MODULE:FUNCTION`` for the policy ``external``."""
    prefix_index_bytes: int = DEFAULT_BYTES
    kv_index_bytes: int = kv_index.DEFAULT_BYTES
    debug_routes: bool = False
    max_tries: int = 3
    connect_timeout: float = 1.0
    first_byte_timeout: float = 600.0
    """As long as OpenAI's clients wait: a response that does not stream begins when it is complete."""
    stall_timeout: float = 300.0
    """Longer than engines think, or write a tool call, in silence."""
    health_interval: float = 2.0
    slow_start: float = 10.0
    max_body_bytes: int = 16 << 20
    max_part_bytes: int = 0
    """Of one text or file in a body; 0: as many as the body may have."""
    max_images: int = 64
    """In one request; 0 for no limit."""
    body_budget_bytes: int = limits.BODY_BUDGET_BYTES
    """Of this process."""
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    body_deadline: float = 300.0
    min_body_rate: int = 1024
    """Bytes per second; 0 for no minimum."""
    stream_comment_interval: float = 10.0
    """Of silence in a stream, or in the wait for one; 0 for no comments."""
    max_connections: int = MAX_CONNECTIONS
    max_connections_per_address: int | None = None
    """0 for no limit, None for half of those there may be in all."""
    trusted_proxies: TrustedProxies = field(default_factory=TrustedProxies)
    """Their ``X-Forwarded-For`` is believed."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    access_log: str | None = None
    """A file; ``-`` for standard output."""
    otlp_endpoint: str | None = None
    """Collector of traces; None: as the environment says."""
    trace_sampling: float | None = None
    """The share of traces that begin here and are recorded; None: as the environment says, else all."""
    ui: bool = True
    """Serve the web UI."""
    ui_files: Path | None = None
    """The folder with its files; None: those that came with the router."""
    worker: int = 0
    workers: int = 1
    """Which one this process is of how many that share their sockets."""
    shared: int | None = None
    """Descriptor of the memory they share."""
    place: Worker | None = None
    """Set in a worker: what its parent gave it."""
    drain_timeout: float = 30.0
    log_level: str = "INFO"
    log_format: LogFormat = "text"
