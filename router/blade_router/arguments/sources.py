"""Where the names on a command line are found: in files of a folder, or as objects of the cluster around this pod."""

import argparse
import os
import re
from pathlib import Path
from typing import Any

from blade_protocol import environment
from blade_router.config.parsing import ConfigError, parse_endpoints
from blade_router.kubernetes import find_cluster

_INSTEAD = {
    "service": f" and ${environment.ENDPOINTS_DIR} is not set; use --endpoints or --config, or run the service with "
    "`blade_operator local up`",
    "config_map": "; use --config",
    "keys_secret": "; use --keys",
    "peers": "; use --replicas",
}
"""What to do outside of Kubernetes, by flag."""


def resolve_sources(parser: argparse.ArgumentParser, values: dict[str, Any]) -> None:
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
