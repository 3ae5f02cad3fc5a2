"""The operator with 1,000 LLMServices, as a process of its own with the chart's permissions, on a real API server.

Brings up a cluster of its own (``KUBE_ASSETS``, docs/e2e.md) with fake nodes, whose pods are Ready at once, and takes
it down again. In this order:

- apply → engine pod: one service applied per second while 100 exist
- 1,000 services in 20 namespaces from nothing to Ready: time, the operator's CPU and memory, and its requests as the
  API server's audit log has them
- a standby that sees all of it for the first time: how long until it is ready, and what that costs
- five minutes without a change: nothing but the Lease may be written
- the leader stopped, killed, ended: how long until the other acts, and that the stopped one writes nothing any more

Every object is compared with what the spec requires. API server, scheduler and controllers share the machine, so times
say as much about it as about the operator; CPU, memory and requests are the operator's own.

    python -m benchmarks.operator        QUICK=1 for 100 services and half a minute
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.figures import Figure, report
from benchmarks.operator import latency, leader, scale
from benchmarks.operator.bench import Bench
from e2e.cluster import OwnNode
from e2e.cluster.assets import Assets
from e2e.cluster.errors import ERRORS
from e2e.support.administrator import administrator
from e2e.support.audit import AuditLog
from e2e.support.images import REPOSITORY
from e2e.support.namespaces import make_namespace
from e2e.support.operator_process import make_accounts

CLUSTER = "bench"
NODES = 3
OPERATORS = "operators"
"""Namespace of their accounts and of the Lease."""
INSIDE = "--inside"


async def measure(cluster: OwnNode, folder: Path) -> list[Figure]:
    """All parts; inside the cluster's network."""
    make_namespace(cluster, OPERATORS)
    first_account, second_account = make_accounts(cluster, OPERATORS, ["first", "second"], folder)
    async with administrator(cluster) as admin:
        bench = Bench(cluster, admin, AuditLog(cluster.layout.audit_log), first_account, second_account, folder)
        figures = _print(await latency.measure(bench))
        with ExitStack() as stack:
            first = stack.enter_context(bench.operator(bench.first))
            figures += _print(await scale.fill(bench, first))
            begin = time.monotonic()
            second = stack.enter_context(bench.operator(bench.second))
            figures += _print(scale.started(second, begin))
            figures += _print(await scale.rest(bench, first, second))
            figures += _print(await leader.lose(bench, scale.keys(), first, second))
    return figures


def _print(figures: list[Figure]) -> list[Figure]:
    """Prints figures as soon as they are known: the whole takes a quarter of an hour."""
    print(*(f"  {figure.name} {figure.value:.4g} {figure.unit}" for figure in figures), sep="\n", flush=True)
    return figures


def main() -> int:
    assets = os.environ.get("KUBE_ASSETS")
    if not assets:
        print("benchmarks.operator needs KUBE_ASSETS=<folder with the Kubernetes programs> (docs/e2e.md)")
        return 1
    cluster = OwnNode(CLUSTER, Assets(Path(assets).resolve()))
    if INSIDE in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            return report("operator", asyncio.run(measure(cluster, Path(folder))))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that it cleans up as after Ctrl-C
    try:
        cluster.up(kwok_nodes=NODES, crds=[REPOSITORY / "crds"])
        try:
            command = [*cluster.enter, sys.executable, "-m", "benchmarks.operator", INSIDE]
            return subprocess.run(command, env=cluster.environment, cwd=REPOSITORY).returncode
        finally:
            cluster.down()
    except ERRORS as error:
        print(f"benchmarks.operator: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
