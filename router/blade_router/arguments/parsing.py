"""From the command line and the environment to options."""

import argparse
import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from blade_protocol import environment, ports
from blade_router.arguments import value_types
from blade_router.arguments.flags import make_parser
from blade_router.arguments.options import Options
from blade_router.arguments.sources import resolve_sources
from blade_router.config.parsing import ConfigError, parse_endpoints
from blade_router.http.body_budget import largest_body
from blade_router.workers import supervisor
from blade_router.workers.supervisor import Worker
from blade_telemetry.options import read_options


def parse_arguments(arguments: Sequence[str] | None = None) -> Options:
    """The options of a command line. Exits with status 2 and one line on stderr when it makes no sense."""
    parser = make_parser()
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
    try:
        read_options(values.get("otlp_endpoint"), values.get("trace_sampling"))
    except ValueError as error:
        parser.error(str(error))
    if place := os.environ.get(supervisor.VARIABLE):
        worker = Worker.decode(place)
        values |= {"place": worker, "worker": worker.index, "shared": worker.shared}
    try:
        if "endpoints" in values:
            values["endpoints"] = parse_endpoints(values["endpoints"])
    except ConfigError as error:
        parser.error(f"--endpoints: {error}")
    resolve_sources(parser, values)
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
            return value_types.port(text)
        except argparse.ArgumentTypeError as error:
            parser.error(f"${environment.ADMIN_PORT}: {error}")
    admin_port = port + ports.INTERNAL_PORT_OFFSET if port else 0
    if admin_port > 65535:
        parser.error(f"--port {port} + {ports.INTERNAL_PORT_OFFSET} is no port; give --admin_port")
    return admin_port
