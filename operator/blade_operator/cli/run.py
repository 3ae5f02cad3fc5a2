"""``run``: the operator on a Kubernetes cluster, until a signal or until it loses its lease.

kopf is the frame: it starts and stops the process and minds signals. It registers no handler for any resource, so it
puts no finalizer and no annotation on any object; who watches what, and why, is in
``docs/decisions/0006-watching-kubernetes.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import kopf
import msgspec
from kubernetes.aio.config import ConfigException

from blade_operator.cli.errors import CommandError
from blade_operator.cluster.kubernetes.api import credentials, load_configuration
from blade_operator.process import Process, Settings
from blade_operator.render import Defaults

_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def run(options: argparse.Namespace) -> int:
    """Run until stopped: 0 then, 1 when it could not go on or another process is the leader now."""
    _log_to_stderr(options.log_level, options.log_format)
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    try:
        configuration = await load_configuration(options.kubeconfig)
    except (ConfigException, OSError) as error:
        raise CommandError(
            f"no way to a cluster: {error}; run it in a pod, or give --kubeconfig FILE or $KUBECONFIG"
        ) from error
    ended = asyncio.Event()
    process = Process(configuration, _settings(options), ended.set)
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await _connection(configuration)

    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.scanning.disabled = True
        settings.posting.enabled = False
        settings.process.ultimate_exiting_timeout = 30
        await process.start()

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await process.stop()

    await kopf.operator(registry=registry, standalone=True, clusterwide=True, stop_flag=ended)
    return 1 if process.failed else 0


def _settings(options: argparse.Namespace) -> Settings:
    defaults = Defaults()
    own = _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.exists() else "default"
    return Settings(
        namespace=options.lease_namespace or own,
        namespaces=tuple(options.namespaces),
        defaults=Defaults(
            engine_image=options.engine_image or defaults.engine_image,
            router_image=options.router_image or defaults.router_image,
            watch_keys=options.watch_keys,
        ),
        lease_name=options.lease_name if options.leader_elect else None,
        identity=options.identity,
        http_port=options.http_port,
        workers=options.workers,
    )


async def _connection(configuration: Any) -> kopf.ConnectionInfo:
    """kopf looks at the list of APIs when it starts, and needs to know where."""
    headers = await credentials(configuration)
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme=scheme or None,
        token=token or None,
    )


class _JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{record.msecs:03.0f}",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _log_to_stderr(level: str, form: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(_JsonLines() if form == "json" else text)
    logging.basicConfig(level=level, handlers=[handler])
    for noisy in ("kopf", "httpx", "asyncio", "kubernetes"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
