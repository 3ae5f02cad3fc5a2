"""``run``: the operator on a Kubernetes cluster, until a signal or until it loses its lease.

kopf is the event source, in a thread of its own: who watches what, and why, is in
``docs/decisions/0006-watching-kubernetes.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from pathlib import Path

from kubernetes.aio.config import ConfigException

from blade_operator.cli.errors import CommandError
from blade_operator.cluster.kubernetes.api import load_configuration
from blade_operator.controller.process import Process, Settings
from blade_operator.descriptors import raise_limit
from blade_operator.render import Defaults
from blade_telemetry import logs

STOP_SECONDS = 30.0
"""Seconds that an orderly end may take."""
_DEFAULTS = (
    *("engine_image", "router_image", "watch_keys", "openshift"),
    *("prometheus_namespaces", "prometheus_labels", "api_server", "group_kind"),
)
"""Options that replace a default of what is rendered."""
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def run(options: argparse.Namespace) -> int:
    """Run until stopped: 0 then, 1 when it could not go on or another process is the leader now."""
    _log_to_stderr(options.log_level, options.log_format)
    try:
        raise_limit()
    except (OSError, ValueError) as error:  # a sandbox may forbid it; the limit that is in effect counts
        logging.getLogger(__name__).warning("the limit of open files cannot be raised: %s", error)
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    try:
        configuration = await load_configuration(options.kubeconfig)
    except (ConfigException, OSError) as error:
        raise CommandError(
            f"no way to a cluster: {error}; run it in a pod, or give --kubeconfig FILE or $KUBECONFIG"
        ) from error
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    process = Process(configuration, _settings(options), ended.set)
    try:
        await process.start()
        await ended.wait()
    except OSError as error:
        ports = f"--http_port {options.http_port}, --external_metrics_port {options.external_metrics_port}"
        raise CommandError(f"cannot start: {error} ({ports})") from error
    finally:
        async with asyncio.timeout(STOP_SECONDS):
            await process.stop()
    return 1 if process.failed else 0


def _settings(options: argparse.Namespace) -> Settings:
    own = _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.exists() else "default"
    namespace = options.lease_namespace or own
    return Settings(
        namespace=namespace,
        namespaces=tuple(options.namespaces),
        defaults=Defaults(**{name: value for name in _DEFAULTS if (value := getattr(options, name)) is not None}),
        lease_name=options.lease_name if options.leader_elect else None,
        installation=f"{namespace}/{options.lease_name}",
        identity=options.identity,
        http_port=options.http_port,
        workers=options.workers,
        external_metrics_port=options.external_metrics_port,
        external_metrics_certificate=Path(options.external_metrics_certificate),
    )


def _log_to_stderr(level: str, form: logs.LogFormat) -> None:
    logs.configure(level, form)
    for noisy in ("aiohttp", "kopf", "httpx", "asyncio", "kubernetes"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger("kopf._core.reactor").setLevel(logging.CRITICAL)  # what ends kopf, the supervisor reports
