"""The operator as a process of this machine, with the chart's permissions: a test may kill it and stop it.

It runs inside the cluster's network, so it reaches the API server and the pods as the real one does. Each process has a
ServiceAccount of its own, by which the audit log distinguishes them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import yaml

from blade_protocol.labels import OPERATOR
from e2e.cluster.base import Cluster
from e2e.support.audit import service_account
from e2e.support.chart import CHART, RELEASE
from e2e.support.waiting import until

LEASE: Final = OPERATOR
"""Name of the Lease; the only one the chart lets an operator touch."""


@dataclass(frozen=True)
class Account:
    """Who a process is to the API server."""

    name: str
    namespace: str
    """Also of the Lease and of the internal key."""
    kubeconfig: Path

    @property
    def user(self) -> str:
        """User name in the audit log."""
        return service_account(self.namespace, self.name)


def make_accounts(
    cluster: Cluster, namespace: str, names: Sequence[str], folder: Path, watching: Sequence[str] = ()
) -> list[Account]:
    """ServiceAccounts of ``namespace`` with the permissions of the chart, in the namespaces ``watching`` or in all."""
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace} for name in names]
    values = ["--set", f"watchNamespaces={{{','.join(watching)}}}"] if watching else []
    shown = ["--namespace", namespace, "--show-only", "templates/rbac.yaml", "--kube-version", "1.36", *values]
    objects = [obj for obj in yaml.safe_load_all(cluster.helm("template", RELEASE, str(CHART), *shown)) if obj]
    for obj in objects:
        if "subjects" in obj:
            obj["subjects"] = subjects
    accounts = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}} for name in names]
    cluster.apply(*accounts, *objects, namespace=namespace)
    return [Account(name, namespace, _kubeconfig(cluster, namespace, name, folder)) for name in names]


def _kubeconfig(cluster: Cluster, namespace: str, name: str, folder: Path) -> Path:
    token = cluster.kubectl("-n", namespace, "create", "token", name, "--duration=24h").strip()
    config: dict[str, Any] = json.loads(cluster.kubectl("config", "view", "--minify", "--flatten", "-o", "json"))
    config["users"] = [{"name": name, "user": {"token": token}}]
    config["contexts"][0]["context"]["user"] = name
    path = folder / f"{name}.kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return path


class OperatorProcess:
    """``blade_operator run`` as ``account``. A context manager: at its end the process is gone."""

    def __init__(self, cluster: Cluster, account: Account, log: Path, *arguments: str) -> None:
        self.account = account
        self.log = log
        self._port = _free_port()
        command = [sys.executable, "-m", "blade_operator.main", "run", "--kubeconfig", str(account.kubeconfig)]
        place = ["--identity", account.name, "--lease_namespace", account.namespace, "--http_port", str(self._port)]
        with log.open("ab") as out:
            self._child = cluster.popen([*command, *place, *arguments], stdout=out)

    @property
    def pid(self) -> int:
        return self._child.pid

    def is_ready(self) -> bool:
        """Whether it has seen everything; raises AssertionError when it ended."""
        assert self._child.poll() is None, f"{self.account.name} ended with {self._child.returncode}:\n{self.said()}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=2) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait_ready(self, timeout: float = 60.0) -> None:
        until(self.is_ready, timeout, f"{self.account.name} has seen everything", pause=0.1)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = 60.0) -> int:
        """Its exit code; raises subprocess.TimeoutExpired."""
        return self._child.wait(timeout)

    def kill(self) -> None:
        """``kill -9``, if it still runs."""
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait()

    def said(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def __enter__(self) -> OperatorProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


@contextmanager
def no_other_operator(cluster: Cluster) -> Iterator[None]:
    """Operators that the chart installed rest meanwhile: they would do the work of the process under test."""
    found = cluster.json("get", "deployments", "-A", "-l", f"app.kubernetes.io/name={OPERATOR}")["items"]
    sizes = {(obj["metadata"]["namespace"], obj["metadata"]["name"]): obj["spec"]["replicas"] for obj in found}

    def scale(namespace: str, name: str, size: int) -> None:
        cluster.kubectl("-n", namespace, "scale", "deployment", name, f"--replicas={size}")

    for where in sizes:
        scale(*where, 0)
    until(
        lambda: not cluster.kubectl("get", "pods", "-A", "-l", f"app.kubernetes.io/name={OPERATOR}", "-o", "name"),
        90,
        "the installed operators have stopped",
    )
    try:
        yield
    finally:
        for where, size in sizes.items():
            scale(*where, size)
        for namespace, name in sizes:
            cluster.kubectl("-n", namespace, "rollout", "status", f"deployment/{name}", "--timeout=120s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
