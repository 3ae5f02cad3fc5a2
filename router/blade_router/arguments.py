"""The command line of ``blade_router``."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from blade_protocol import environment, limits, ports
from blade_protocol.routing import EndpointConfig, PolicyName
from blade_router.config.parsing import POLICIES, ConfigError, parse_endpoints
from blade_router.engines import kv_index
from blade_router.http.accept.connection_table import MAX_CONNECTIONS
from blade_router.http.accept.trusted_proxies import TrustedProxies
from blade_router.http.body_budget import largest_body
from blade_router.kubernetes import Cluster, find_cluster
from blade_router.policies.prefix_cache.prefix_index import DEFAULT_BYTES
from blade_router.workers import supervisor
from blade_router.workers.supervisor import Worker


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
    body_budget_bytes: int = limits.BODY_BUDGET_BYTES
    """Of this process."""
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    body_deadline: float = 300.0
    min_body_rate: int = 1024
    """Bytes per second; 0 for no minimum."""
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
    worker: int = 0
    workers: int = 1
    """Which one this process is of how many that share their sockets."""
    shared: int | None = None
    """Descriptor of the memory they share."""
    place: Worker | None = None
    """Set in a worker: what its parent gave it."""
    drain_timeout: float = 30.0
    log_level: str = "INFO"


class _Parser(argparse.ArgumentParser):
    """Errors on one line, without the usage in front of them."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="blade_router",
        description="Route OpenAI requests to the replicas of one LLM service. Give at least one of --endpoints, "
        "--config and --service; with several, their endpoints are added up.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    defaults = Options()
    where = parser.add_argument_group("listen")
    where.add_argument("--host", default=defaults.host, help="address to listen on; 0.0.0.0 for all")
    where.add_argument("--port", type=_port, default=defaults.port, help="port to listen on; 0 for a free one")
    where.add_argument(
        "--admin_host",
        default=os.environ.get(environment.HOST) or defaults.admin_host,
        help=f"address of the admin port: ${environment.HOST}, else this machine only",
    )
    where.add_argument(
        "--admin_port",
        type=_port,
        help=f"port of /metrics, /status, /debug and /internal, plain HTTP; 0 for a free one (default: "
        f"${environment.ADMIN_PORT}, else --port + {ports.INTERNAL_PORT_OFFSET})",
    )
    source = parser.add_argument_group("endpoints")
    source.add_argument("--endpoints", metavar="URL[,URL...]", help="base URLs of engines (http://HOST:PORT)")
    source.add_argument("--config", metavar="FILE", help="RouterConfig as JSON; watched for changes")
    source.add_argument(
        "--service",
        metavar="NAME",
        action="append",
        help=f"watch the endpoints of this service: of the file NAME.json in ${environment.ENDPOINTS_DIR} if that is "
        "set, else, in a Kubernetes pod, of the Service's EndpointSlices; give it once for each of several services",
    )
    source.add_argument(
        "--config_map",
        metavar="NAME",
        help="in a Kubernetes pod: watch this ConfigMap's router.json through the API; --config, the same mounted as "
        "a file, is used until the API responds",
    )
    routing = parser.add_argument_group("routing")
    routing.add_argument("--policy", choices=POLICIES, help="how to choose (default: the file's, else auto)")
    routing.add_argument(
        "--cost",
        metavar="MODULE:FUNCTION",
        help="for --policy external: a function(endpoint, request) that returns a number; the lowest wins",
    )
    routing.add_argument(
        "--prefix_index_bytes",
        type=_at_least_one,
        default=defaults.prefix_index_bytes,
        help="memory for the approximate index of engines' prefix caches",
    )
    routing.add_argument(
        "--kv_index_bytes",
        type=_at_least_one,
        default=defaults.kv_index_bytes,
        help="for --policy kv-aware: memory for the exact index of engines' prefix caches, from their KV events",
    )
    routing.add_argument(
        "--debug_routes",
        action="store_true",
        default=defaults.debug_routes,
        help="serve POST /debug/route to every address that reaches the admin port, not to this machine only, and tell "
        "every client why a request went where it did",
    )
    routing.add_argument(
        "--max_tries", type=_at_least_one, default=defaults.max_tries, help="endpoints that may work on one request"
    )
    routing.add_argument(
        "--connect_timeout",
        type=_some_seconds,
        default=defaults.connect_timeout,
        help="seconds to connect to an engine",
    )
    routing.add_argument(
        "--first_byte_timeout",
        type=_seconds,
        default=defaults.first_byte_timeout,
        help="seconds until the first byte of a response's body, with its time in the engine's queue and, unless it "
        "streams, all of its generation; then another engine is tried; 0: no limit",
    )
    routing.add_argument(
        "--stall_timeout",
        type=_seconds,
        default=defaults.stall_timeout,
        help="seconds without a byte in a response that has begun, then it counts as broken; 0: no limit. More "
        "than an engine may think in silence (hidden reasoning)",
    )
    routing.add_argument(
        "--health_interval", type=_some_seconds, default=defaults.health_interval, help="seconds between health checks"
    )
    admission = parser.add_argument_group("keys and limits")
    admission.add_argument(
        "--keys",
        metavar="FILE",
        help="API keys as JSON, or a folder of such files (a mounted Secret); watched for changes. Without this "
        "and --keys_secret no key is required",
    )
    admission.add_argument(
        "--keys_secret",
        metavar="NAME",
        help="in a Kubernetes pod: watch the keys in this Secret through the API; --keys, the same mounted, is "
        "used until the API responds",
    )
    admission.add_argument(
        "--peers",
        metavar="NAME|URL,URL",
        help="this router's own Service; its ready replicas share every limit. Found as that of --service. Or the base "
        "URLs of all replicas, this one among them: http://HOST:PORT,...",
    )
    admission.add_argument(
        "--replicas",
        type=_at_least_one,
        default=defaults.replicas,
        help="routers that split every limit, where --peers cannot count them",
    )
    clients = parser.add_argument_group("clients")
    clients.add_argument(
        "--max_body_bytes", type=_at_least_one, default=defaults.max_body_bytes, help="larger requests get a 413"
    )
    clients.add_argument(
        "--header_timeout",
        type=_some_seconds,
        default=defaults.header_timeout,
        help="seconds for the head of a request, from its first byte; then it gets a 408",
    )
    clients.add_argument(
        "--body_timeout",
        type=_some_seconds,
        default=defaults.body_timeout,
        help="seconds without a byte of a body that is not complete; then the request gets a 408",
    )
    clients.add_argument(
        "--body_deadline",
        type=_seconds,
        default=defaults.body_deadline,
        help="seconds for a whole body; then the request gets a 408; 0: no limit",
    )
    clients.add_argument(
        "--min_body_rate",
        type=_whole,
        default=defaults.min_body_rate,
        help="bytes per second that a body must come with on average after the first --body_timeout seconds, else the "
        "request gets a 408; 0: no minimum",
    )
    clients.add_argument(
        "--body_budget_bytes",
        type=_at_least_one,
        default=defaults.body_budget_bytes,
        help="memory of each process for the bodies of all requests in flight; what does not fit gets a 503",
    )
    clients.add_argument(
        "--max_connections",
        type=_at_least_one,
        default=defaults.max_connections,
        help="client connections, of all processes together; beyond them idle ones close. The limit of open files, of "
        "which each connection may need two, lowers it",
    )
    clients.add_argument(
        "--max_connections_per_address",
        metavar="N",
        type=_whole,
        help="those from one address, except --trusted_proxies (default: half of all; 0: no limit)",
    )
    clients.add_argument(
        "--trusted_proxies",
        metavar="CIDR[,CIDR...]",
        type=_proxies,
        help="proxies in front of the router (10.0.0.0/8): their X-Forwarded-For says who the client is",
    )
    clients.add_argument(
        "--allow_client_priority",
        action="store_true",
        help="without keys: let requests have a priority below 0, ahead of those without one; else it becomes 0",
    )
    clients.add_argument("--tls_cert", metavar="FILE", help="serve HTTPS: certificate chain (PEM); watched for changes")
    clients.add_argument("--tls_key", metavar="FILE", help="the key of --tls_cert (PEM); watched for changes")
    observability = parser.add_argument_group("observability")
    observability.add_argument(
        "--access_log", metavar="FILE", help="write a line of JSON for each request; '-' for standard output"
    )
    observability.add_argument(
        "--otlp_endpoint",
        metavar="URL",
        type=_collector,
        help="send a span for each sampled request to this OpenTelemetry collector",
    )
    resilience = parser.add_argument_group("resilience")
    resilience.add_argument(
        "--slow_start",
        type=_seconds,
        default=defaults.slow_start,
        help="seconds in which an engine that has become ready gets up to its full share of requests; 0: at once",
    )
    process = parser.add_argument_group("process")
    process.add_argument(
        "--workers", type=_at_least_one, default=defaults.workers, help="processes that share the port, one CPU each"
    )
    process.add_argument(
        "--drain_timeout",
        type=_seconds,
        default=defaults.drain_timeout,
        help="seconds requests have to finish after SIGTERM",
    )
    process.add_argument(
        "--log_level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), type=str.upper, default=defaults.log_level
    )
    return parser


def parse_arguments(arguments: Sequence[str] | None = None) -> Options:
    """The options of a command line. Exits with status 2 and one line on stderr when it makes no sense."""
    parser = _parser()
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        flag = unknown[0].split("=")[0]
        near = difflib.get_close_matches(flag, list(parser._option_string_actions), n=1)
        parser.error(f"unknown argument {unknown[0]}" + (f"; did you mean {near[0]}?" if near else ""))
    values = vars(known)
    budget, body = values["body_budget_bytes"], values["max_body_bytes"]
    if largest_body(budget) < body:
        parser.error(
            f"--body_budget_bytes {budget} has never room for a body of --max_body_bytes {body}; give at least "
            f"{body * 8 // 7 + 1}, or lower --max_body_bytes"
        )
    for name in ("config", "keys", "tls_cert", "tls_key"):
        if name in values:
            values[name] = Path(values[name])
    if ("tls_cert" in values) != ("tls_key" in values):
        parser.error("--tls_cert and --tls_key belong together; give both")
    if "admin_port" not in values:
        values["admin_port"] = _admin_port(parser, values.get("port", ports.ROUTER_PORT))
    if place := os.environ.get(supervisor.VARIABLE):
        worker = Worker.decode(place)
        values |= {"place": worker, "worker": worker.index, "shared": worker.shared}
    try:
        if "endpoints" in values:
            values["endpoints"] = parse_endpoints(values["endpoints"])
    except ConfigError as error:
        parser.error(f"--endpoints: {error}")
    _resolve_sources(parser, values)
    if not {"endpoints", "config", "service", "services", "config_map"} & values.keys():
        parser.error("no endpoints: give --endpoints URL[,URL...], --config FILE or --service NAME")
    if number := os.environ.get(environment.LISTEN_FD):
        if not number.isdecimal():
            parser.error(f"${environment.LISTEN_FD} is {number!r}, not the number of a file descriptor")
        values["listen_fd"] = int(number)
    return Options(**values)


def _admin_port(parser: argparse.ArgumentParser, port: int) -> int:
    """The admin port where no flag sets it; free ones come in pairs."""
    if text := os.environ.get(environment.ADMIN_PORT):
        try:
            return _port(text)
        except argparse.ArgumentTypeError as error:
            parser.error(f"${environment.ADMIN_PORT}: {error}")
    admin_port = port + ports.INTERNAL_PORT_OFFSET if port else 0
    if admin_port > 65535:
        parser.error(f"--port {port} + {ports.INTERNAL_PORT_OFFSET} is no port; give --admin_port")
    return admin_port


def _resolve_sources(parser: argparse.ArgumentParser, values: dict[str, Any]) -> None:
    """Resolve names of services and objects: to files of a folder, or to objects of the cluster around this pod."""
    if "://" in values.get("peers", ""):
        try:
            values["peers"] = tuple(endpoint.url for endpoint in parse_endpoints(values["peers"]))
        except ConfigError as error:
            parser.error(f"--peers: {error}")
    services: list[str] = values.pop("service", [])
    named = [("service", name) for name in services]
    named += [
        (flag, values[flag]) for flag in ("config_map", "keys_secret", "peers") if isinstance(values.get(flag), str)
    ]
    for flag, name in named:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name):
            parser.error(f"--{flag}: {name!r} is no Kubernetes name (lower case, digits, '-' and '.')")
    if len(set(services)) < len(services):
        parser.error("--service: the same service twice")
    if folder := os.environ.get(environment.ENDPOINTS_DIR):
        found: list[Path | str] = [Path(folder) / f"{name}.json" for name in services]
        for flag, mounted in (("config_map", "config"), ("keys_secret", "keys")):
            if mounted in values:
                values.pop(flag, None)  # the file is the object, and there is no API to watch
        if isinstance(values.get("peers"), str):
            values["peers"] = Path(folder) / f"{values['peers']}.json"
        named = [(flag, name) for flag, name in named if isinstance(values.get(flag), str)]
    else:
        found = list(services)
    if len(found) == 1:
        values["service"] = found[0]
    elif found:
        values["services"] = tuple(found)
    if named:
        values["cluster"] = find_cluster()
        if values["cluster"] is None:
            parser.error(
                f"--{named[0][0]}: this is no Kubernetes pod ($KUBERNETES_SERVICE_HOST is not set)"
                f"{_INSTEAD.get(named[0][0], '')}"
            )


_INSTEAD = {
    "service": f" and ${environment.ENDPOINTS_DIR} is not set; use --endpoints or --config, or run the service with "
    "`blade_operator local up`",
    "config_map": "; use --config",
    "keys_secret": "; use --keys",
    "peers": "; use --replicas",
}


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def _collector(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise argparse.ArgumentTypeError(f"{text!r} is not the URL of a collector (http://HOST:4318)")
    return text


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number (0 or more)")
    return int(text)


def _proxies(text: str) -> TrustedProxies:
    try:
        return TrustedProxies.parse(text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; give networks such as 10.0.0.0/8,192.168.1.7") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds (0 or more)")
    return seconds


def _some_seconds(text: str) -> float:
    seconds = _seconds(text)
    if not seconds:
        raise argparse.ArgumentTypeError("must be more than 0")
    return seconds
