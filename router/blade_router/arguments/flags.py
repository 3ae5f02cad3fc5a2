"""The flags of the command line, and what ``--help`` says of them."""

import argparse
import os
import sys
from typing import Final, NoReturn

from blade_protocol import environment, ports
from blade_router.arguments import value_types
from blade_router.arguments.options import Options
from blade_router.config.parsing import POLICIES
from blade_telemetry.logs import FORMATS

DEFAULTS: Final = Options()


class _Parser(argparse.ArgumentParser):
    """Errors on one line, without the usage in front of them."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="blade_router",
        description="Route OpenAI requests to the replicas of one LLM service. Give at least one of --endpoints, "
        "--config and --service; with several, their endpoints are added up.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    _add_listen(parser.add_argument_group("listen"))
    _add_endpoints(parser.add_argument_group("endpoints"))
    _add_routing(parser.add_argument_group("routing"))
    _add_admission(parser.add_argument_group("keys and limits"))
    _add_clients(parser.add_argument_group("clients"))
    _add_observability(parser.add_argument_group("observability"))
    _add_resilience(parser.add_argument_group("resilience"))
    _add_process(parser.add_argument_group("process"))
    return parser


def _add_listen(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default=DEFAULTS.host, help="address to listen on; 0.0.0.0 for all")
    group.add_argument(
        "--port", type=value_types.port, default=DEFAULTS.port, help="port to listen on; 0 for a free one"
    )
    group.add_argument(
        "--admin_host",
        default=os.environ.get(environment.HOST) or DEFAULTS.admin_host,
        help=f"address of the admin port: ${environment.HOST}, else this machine only",
    )
    group.add_argument(
        "--admin_port",
        type=value_types.port,
        help=f"port of /metrics, /status, /debug and /internal, plain HTTP; 0 for a free one (default: "
        f"${environment.ADMIN_PORT}, else --port + {ports.INTERNAL_PORT_OFFSET})",
    )


def _add_endpoints(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--endpoints", metavar="URL[,URL...]", help="base URLs of engines (http://HOST:PORT)")
    group.add_argument("--config", metavar="FILE", help="RouterConfig as JSON; watched for changes")
    group.add_argument(
        "--service",
        metavar="NAME",
        action="append",
        help=f"watch the endpoints of this service: of the file NAME.json in ${environment.ENDPOINTS_DIR} if that is "
        "set, else, in a Kubernetes pod, of the Service's EndpointSlices; give it once for each of several services",
    )
    group.add_argument(
        "--config_map",
        metavar="NAME",
        help="in a Kubernetes pod: watch this ConfigMap's router.json through the API; --config, the same mounted as "
        "a file, is used until the API responds",
    )


def _add_routing(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--policy", choices=POLICIES, help="how to choose (default: the file's, else auto)")
    group.add_argument(
        "--cost",
        metavar="MODULE:FUNCTION",
        help="for --policy external: a function(endpoint, request) that returns a number; the lowest wins",
    )
    group.add_argument(
        "--prefix_index_bytes",
        type=value_types.at_least_one,
        default=DEFAULTS.prefix_index_bytes,
        help="memory for the approximate index of engines' prefix caches",
    )
    group.add_argument(
        "--kv_index_bytes",
        type=value_types.at_least_one,
        default=DEFAULTS.kv_index_bytes,
        help="for --policy kv-aware: memory for the exact index of engines' prefix caches, from their KV events",
    )
    group.add_argument(
        "--debug_routes",
        action="store_true",
        default=DEFAULTS.debug_routes,
        help="serve POST /debug/route to every address that reaches the admin port, not to this machine only, and tell "
        "every client why a request went where it did",
    )
    group.add_argument(
        "--replica_sync",
        action=argparse.BooleanOptionalAction,
        default=DEFAULTS.replica_sync,
        help="router replica sync: the replicas of --peers, and --workers, tell each other what they have sent where",
    )
    group.add_argument(
        "--max_tries",
        type=value_types.at_least_one,
        default=DEFAULTS.max_tries,
        help="endpoints that may work on one request",
    )
    group.add_argument(
        "--connect_timeout",
        type=value_types.some_seconds,
        default=DEFAULTS.connect_timeout,
        help="seconds to connect to an engine",
    )
    group.add_argument(
        "--first_byte_timeout",
        type=value_types.seconds,
        default=DEFAULTS.first_byte_timeout,
        help="seconds until the first byte of a response's body, with its time in the engine's queue and, unless it "
        "streams, all of its generation; then another engine is tried; 0: no limit",
    )
    group.add_argument(
        "--stall_timeout",
        type=value_types.seconds,
        default=DEFAULTS.stall_timeout,
        help="seconds without a byte in a response that has begun, then it counts as broken; 0: no limit. More "
        "than an engine may think in silence (hidden reasoning)",
    )
    group.add_argument(
        "--health_interval",
        type=value_types.some_seconds,
        default=DEFAULTS.health_interval,
        help="seconds between health checks",
    )


def _add_admission(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--keys",
        metavar="FILE",
        help="API keys as JSON, or a folder of such files (a mounted Secret); watched for changes. Without this "
        "and --keys_secret no key is required",
    )
    group.add_argument(
        "--keys_secret",
        metavar="NAME",
        help="in a Kubernetes pod: watch the keys in this Secret through the API; --keys, the same mounted, is "
        "used until the API responds",
    )
    group.add_argument(
        "--peers",
        metavar="NAME|URL,URL",
        help="this router's own Service; its ready replicas share every limit. Found as that of --service. Or the base "
        "URLs of all replicas, this one among them: http://HOST:PORT,...",
    )
    group.add_argument(
        "--replicas",
        type=value_types.at_least_one,
        default=DEFAULTS.replicas,
        help="routers that split every limit, where --peers cannot count them",
    )


def _add_clients(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max_body_bytes",
        type=value_types.at_least_one,
        default=DEFAULTS.max_body_bytes,
        help="larger requests get a 413",
    )
    group.add_argument(
        "--max_part_bytes",
        type=value_types.part_bytes,
        default=DEFAULTS.max_part_bytes,
        help="requests with a larger picture, file or text in their body get a 413; 0: as large as the body may be",
    )
    group.add_argument(
        "--max_images",
        type=value_types.whole,
        default=DEFAULTS.max_images,
        help="requests with more images and videos get a 400; 0: no limit",
    )
    group.add_argument(
        "--header_timeout",
        type=value_types.some_seconds,
        default=DEFAULTS.header_timeout,
        help="seconds for the head of a request, from its first byte; then it gets a 408",
    )
    group.add_argument(
        "--body_timeout",
        type=value_types.some_seconds,
        default=DEFAULTS.body_timeout,
        help="seconds without a byte of a body that is not complete; then the request gets a 408",
    )
    group.add_argument(
        "--body_deadline",
        type=value_types.seconds,
        default=DEFAULTS.body_deadline,
        help="seconds for a whole body; then the request gets a 408; 0: no limit",
    )
    group.add_argument(
        "--min_body_rate",
        type=value_types.whole,
        default=DEFAULTS.min_body_rate,
        help="bytes per second that a body must come with on average after the first --body_timeout seconds, else the "
        "request gets a 408; 0: no minimum",
    )
    group.add_argument(
        "--body_budget_bytes",
        type=value_types.at_least_one,
        default=DEFAULTS.body_budget_bytes,
        help="memory of each process for the bodies of all requests in flight; what does not fit gets a 503",
    )
    group.add_argument(
        "--stream_comment_interval",
        type=value_types.seconds,
        default=DEFAULTS.stream_comment_interval,
        help="seconds of silence after which a stream, or the wait for one, gets a comment (': keep-alive'), so that "
        "nothing between drops the connection; until then a refusal keeps its status; 0: no comments",
    )
    group.add_argument(
        "--max_connections",
        type=value_types.at_least_one,
        default=DEFAULTS.max_connections,
        help="client connections, of all processes together; beyond them idle ones close. The limit of open files, of "
        "which each connection may need two, lowers it",
    )
    group.add_argument(
        "--max_connections_per_address",
        metavar="N",
        type=value_types.whole,
        help="those from one address, except --trusted_proxies (default: half of all; 0: no limit)",
    )
    group.add_argument(
        "--trusted_proxies",
        metavar="CIDR[,CIDR...]",
        type=value_types.proxies,
        help="proxies in front of the router (10.0.0.0/8): their X-Forwarded-For says who the client is",
    )
    group.add_argument(
        "--allow_client_priority",
        action="store_true",
        help="without keys: let requests have a priority below 0, ahead of those without one; else it becomes 0",
    )
    group.add_argument("--tls_cert", metavar="FILE", help="serve HTTPS: certificate chain (PEM); watched for changes")
    group.add_argument("--tls_key", metavar="FILE", help="the key of --tls_cert (PEM); watched for changes")


def _add_observability(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--access_log", metavar="FILE", help="write a line of JSON for each request; '-' for standard output"
    )
    group.add_argument(
        "--otlp_endpoint",
        "--otlp_traces_endpoint",
        metavar="URL",
        type=value_types.collector,
        help="send traces to this OpenTelemetry collector, as OTLP over HTTP (default: $OTEL_EXPORTER_OTLP_ENDPOINT, "
        "else none); without a path, /v1/traces is used",
    )
    group.add_argument(
        "--trace_sampling",
        metavar="RATIO",
        type=value_types.ratio,
        help="share of requests that are traced, of those whose client has not decided it (default: "
        "$OTEL_TRACES_SAMPLER, else 1: all)",
    )

    group.add_argument(
        "--ui",
        action=argparse.BooleanOptionalAction,
        default=DEFAULTS.ui,
        help="serve the web UI at /ui/: whoever has no API key sees it all where no key is required, else a key's "
        "holder what concerns the key",
    )


def _add_resilience(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--slow_start",
        type=value_types.seconds,
        default=DEFAULTS.slow_start,
        help="seconds in which an engine that has become ready gets up to its full share of requests; 0: at once",
    )


def _add_process(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--workers",
        type=value_types.at_least_one,
        default=DEFAULTS.workers,
        help="processes that share the port, one CPU each",
    )
    group.add_argument(
        "--drain_timeout",
        type=value_types.seconds,
        default=DEFAULTS.drain_timeout,
        help="seconds requests have to finish after SIGTERM",
    )
    group.add_argument(
        "--log_level", choices=("DEBUG", "INFO", "WARNING", "ERROR"), type=str.upper, default=DEFAULTS.log_level
    )
    group.add_argument(
        "--log_format",
        choices=FORMATS,
        default="json" if os.environ.get(environment.LOG_FORMAT) == "json" else DEFAULTS.log_format,
        help=f"json: one object a line, on standard error (${environment.LOG_FORMAT})",
    )
