"""``rollout``: how a change goes, its history, pausing and resuming it, going back, and replacing every engine.

These change the spec in its user's name, with the user's rights; the operator itself never does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from blade_operator.cli import history, tables
from blade_operator.cli.clients import Client, LocalClient
from blade_operator.cli.errors import Changed, CommandError
from blade_operator.cluster.local.layout import Layout
from blade_operator.command_line import one_line
from blade_operator.model.objects import Object
from blade_protocol.labels import GROUP, SINGULAR

_POLL = 0.5
"""Seconds between two looks at the status."""
_ATTEMPTS: Final = 5
_RETRY: Final = "nothing to retry: the current revision was not rolled back; `rollout restart` replaces all engines"


def run(options: argparse.Namespace) -> int:
    """Execute one of the commands on a service."""
    client: Client
    if options.kubeconfig:
        from blade_operator.cli.cluster_client import ClusterClient  # the client of Kubernetes takes long to import

        client = ClusterClient(options.kubeconfig)
    else:
        client = LocalClient(Layout.of(options.name))
    return execute(client, options.namespace, options)


def execute(client: Client, namespace: str, options: argparse.Namespace) -> int:
    """Execute the command that ``options`` name, where ``client`` leads to; again where the service has changed
    between being read and being written, by its status for one."""
    name = options.object[-1].rpartition("/")[2]
    for _ in range(_ATTEMPTS - 1):
        with suppress(Changed):
            return _COMMANDS[options.action](client, namespace, name, options)
    return _COMMANDS[options.action](client, namespace, name, options)


def _status(client: Client, namespace: str, name: str, options: argparse.Namespace) -> int:
    """Print how the rollout goes until it ends: 0 when it is complete, 1 when it failed or took too long."""
    shown, began = "", time.monotonic()
    while True:
        found = history.progress(client.service(namespace, name), client.revisions(namespace, name))
        if found.failed:
            raise CommandError(found.message)
        if found.message != shown:
            print(one_line(found.message), flush=True)
            shown = found.message
        if found.done or not options.watch:
            return 0
        if options.timeout and time.monotonic() - began > options.timeout:
            raise CommandError(f"the rollout did not end within {options.timeout} s")
        time.sleep(_POLL)


def _history(client: Client, namespace: str, name: str, options: argparse.Namespace) -> int:
    service = client.service(namespace, name)
    print(f"{SINGULAR}.{GROUP}/{name}")
    if rows := history.history(service, client.revisions(namespace, name)):
        print("\n".join(tables.render(rows)))
    else:
        print("there is no revision yet", file=sys.stderr)
    return 0


def _undo(client: Client, namespace: str, name: str, options: argparse.Namespace) -> int:
    service = client.service(namespace, name)
    revision = history.find(service, client.revisions(namespace, name), options.to_revision)
    number = revision.get("revision", 0)
    edited = history.undone(service, revision)
    if edited is None:
        print(f"{SINGULAR}.{GROUP}/{name} skipped undo: the spec is that of revision {number} already")
        return 0
    client.replace(edited)
    print(f"{SINGULAR}.{GROUP}/{name} went back to revision {number} ({history.name_of(revision)})")
    return 0


def _change(edit: Callable[[Object], Object], done: str) -> Callable[[Client, str, str, argparse.Namespace], int]:
    def change(client: Client, namespace: str, name: str, options: argparse.Namespace) -> int:
        client.replace(edit(client.service(namespace, name)))
        print(f"{SINGULAR}.{GROUP}/{name} {done}")
        return 0

    return change


def _restarted(service: Object) -> Object:
    return history.restarted(service, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def _retried(service: Object) -> Object:
    if not history.is_rolled_back(service):
        raise CommandError(_RETRY)
    return _restarted(service)


_COMMANDS: Final[dict[str, Callable[[Client, str, str, argparse.Namespace], int]]] = {
    "status": _status,
    "history": _history,
    "undo": _undo,
    "pause": _change(lambda service: history.paused(service, True), "paused"),
    "resume": _change(lambda service: history.paused(service, False), "resumed"),
    "restart": _change(_restarted, "restarted"),
    "retry": _change(_retried, "tried again"),
}
