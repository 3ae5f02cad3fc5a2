"""The command line of ``blade_router``."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from blade_protocol import environment, ports
from blade_protocol.routing import EndpointConfig, PolicyName
from blade_router.config import POLICIES, ConfigError, parse_endpoints
from blade_router.kubernetes import Cluster, find_cluster


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a router process is started with. Times are in seconds; 0 means no limit where it says so."""

    host: str = "127.0.0.1"
    port: int = ports.ROUTER_PORT
    listen_fd: int | None = None
    """An inherited listening socket to accept from as well."""
    endpoints: tuple[EndpointConfig, ...] = ()
    config: Path | None = None
    service: Path | str | None = None
    """Whose endpoints to follow: a file with them, or the name of a Service in ``cluster``."""
    config_map: str | None = None
    """Name of a ConfigMap in ``cluster``."""
    cluster: Cluster | None = None
    """The Kubernetes API to follow ``service`` and ``config_map`` through."""
    policy: PolicyName | None = None
    max_tries: int = 3
    connect_timeout: float = 1.0
    first_byte_timeout: float = 0.0
    health_interval: float = 2.0
    max_body_bytes: int = 16 << 20
    drain_timeout: float = 30.0
    log_level: str = "INFO"
    workers: int = 1
    keys: Path | None = None
    keys_secret: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    access_log: str | None = None
    peers: str | None = None
    slow_start: float = 0.0
    prefix_index_bytes: int = 0


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
    source = parser.add_argument_group("endpoints")
    source.add_argument("--endpoints", metavar="URL[,URL...]", help="base URLs of engines (http://HOST:PORT)")
    source.add_argument("--config", metavar="FILE", help="RouterConfig as JSON; followed when it changes")
    source.add_argument(
        "--service",
        metavar="NAME",
        help=f"follow the endpoints of this service: of the file NAME.json in ${environment.ENDPOINTS_DIR} if that is "
        "set, else, in a Kubernetes pod, of the Service's EndpointSlices",
    )
    source.add_argument(
        "--config_map",
        metavar="NAME",
        help="in a Kubernetes pod: follow this ConfigMap's router.json through the API; --config, the same mounted as "
        "a file, is what counts until the API answers",
    )
    routing = parser.add_argument_group("routing")
    routing.add_argument("--policy", choices=POLICIES, help="how to choose (default: the file's, else auto)")
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
        help="seconds until the first byte of an answer's body, then another engine is tried; 0: wait for ever",
    )
    routing.add_argument(
        "--health_interval", type=_some_seconds, default=defaults.health_interval, help="seconds between health checks"
    )
    process = parser.add_argument_group("process")
    process.add_argument(
        "--max_body_bytes", type=_at_least_one, default=defaults.max_body_bytes, help="larger requests get a 413"
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
    operator = parser.add_argument_group("rendered by the operator")
    operator.add_argument("--workers", type=_at_least_one)
    for flag in ("--keys", "--tls_cert", "--tls_key"):
        operator.add_argument(flag, type=Path, metavar="PATH")
    for flag in ("--keys_secret", "--access_log", "--peers"):
        operator.add_argument(flag)
    operator.add_argument("--slow_start", type=_seconds)
    operator.add_argument("--prefix_index_bytes", type=_at_least_one)
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
    if "config" in values:
        values["config"] = Path(values["config"])
    try:
        if "endpoints" in values:
            values["endpoints"] = parse_endpoints(values["endpoints"])
    except ConfigError as error:
        parser.error(f"--endpoints: {error}")
    _find_followed(parser, values)
    if not {"endpoints", "config", "service", "config_map"} & values.keys():
        parser.error("no endpoints: give --endpoints URL[,URL...], --config FILE or --service NAME")
    if number := os.environ.get(environment.LISTEN_FD):
        if not number.isdecimal():
            parser.error(f"${environment.LISTEN_FD} is {number!r}, not the number of a file descriptor")
        values["listen_fd"] = int(number)
    return Options(**values)


def _find_followed(parser: argparse.ArgumentParser, values: dict[str, Any]) -> None:
    """Say where ``--service`` and ``--config_map`` are to be found: in a folder, or in the cluster around this pod."""
    for name in ("service", "config_map"):
        if name in values and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", values[name]):
            parser.error(f"--{name}: {values[name]!r} is no Kubernetes name (lower case, digits, '-' and '.')")
    if folder := os.environ.get(environment.ENDPOINTS_DIR):
        if "service" in values:
            values["service"] = Path(folder) / f"{values['service']}.json"
        if "config" in values:
            values.pop("config_map", None)  # the file is the ConfigMap, and there is no API that would know more
    if isinstance(values.get("service"), str) or "config_map" in values:
        values["cluster"] = find_cluster()
        if values["cluster"] is None:
            flag = "--service" if "service" in values else "--config_map"
            parser.error(
                f"{flag}: this is no Kubernetes pod ($KUBERNETES_SERVICE_HOST is not set) and "
                f"${environment.ENDPOINTS_DIR} is not set; use --endpoints or --config, or run the service with "
                "`blade_operator local up`"
            )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


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
