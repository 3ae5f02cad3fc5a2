"""A thousand services: what it takes to make them all Ready, and what they cost while nothing happens."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from benchmarks.figures import QUICK, Figure
from benchmarks.operator.bench import Bench, Meter, condition
from blade_operator.model.objects import Key, Object
from e2e.support.operator_process import OperatorProcess

SERVICES = 100 if QUICK else 1000
NAMESPACES = SERVICES // 50
"""As teams have them. With all in one the API server gets slow: to let the operator make a Role or a RoleBinding it
reads all RoleBindings of the namespace."""
IDLE_SECONDS = 30.0 if QUICK else 300.0
RSS_TARGET = 250.0
_VERBS = ("list", "watch", "create", "patch", "delete")


def keys() -> list[Key]:
    """All services, spread over the namespaces."""
    return [Key(f"team{number % NAMESPACES:02}", f"s{number:04}") for number in range(SERVICES)]


async def fill(bench: Bench, operator: OperatorProcess) -> list[Figure]:
    """All services, from nothing to Ready."""
    for namespace in sorted({key.namespace for key in keys()}):
        await asyncio.to_thread(bench.namespace, namespace)
    mark, begin, meter = bench.audit.mark(), datetime.now(UTC), Meter(operator.pid)
    before = meter.cpu_seconds
    await bench.apply(keys())
    services = await bench.all_ready(SERVICES, 1800)
    took = (max(map(_ready_since, services)) - begin).total_seconds()
    await quiet(bench, mark)
    cpu = meter.cpu_seconds - before
    await bench.check(120)
    verbs, writes = bench.verbs(bench.first, mark), len(bench.written(bench.first, mark))
    return [
        Figure("services", SERVICES, "services"),
        Figure("all_ready", took, "s"),
        Figure("operator_cpu_per_service", 1e3 * cpu / SERVICES, "ms"),
        Figure("operator_rss_peak", meter.rss_peak, "MiB", "<=", RSS_TARGET),
        Figure("operator_rss_settled", meter.rss, "MiB", "<=", RSS_TARGET),
        Figure("writes_per_service", writes / SERVICES, "requests"),
        *(Figure(f"{verb}_requests_per_service", verbs[verb] / SERVICES, "requests") for verb in _VERBS),
    ]


def started(standby: OperatorProcess, since: float) -> list[Figure]:
    """The standby has just become ready: it has listed everything."""
    return [
        Figure("standby_ready", time.monotonic() - since, "s"),
        Figure("standby_start_cpu", Meter(standby.pid).cpu_seconds, "s"),
    ]


async def rest(bench: Bench, leader: OperatorProcess, standby: OperatorProcess) -> list[Figure]:
    """Nothing changes for a while."""
    await quiet(bench, bench.audit.mark())
    mark, meters = bench.audit.mark(), [Meter(leader.pid), Meter(standby.pid)]
    await asyncio.sleep(IDLE_SECONDS)
    cpu = [meter.cpu_percent for meter in meters]
    accounts = (leader.account, standby.account)
    written = [each for account in accounts for each in bench.written(account, mark)]
    for each in written[:10]:
        print(f"  written at rest: {each.verb} {each.resource} {each.subresource} {each.name}", flush=True)
    requests = sum(sum(bench.verbs(account, mark).values()) for account in accounts)
    return [
        Figure("idle_writes", len(written), "requests", "<=", 0),
        Figure("idle_requests_per_minute", 60 * requests / IDLE_SECONDS, "requests"),
        Figure("idle_leader_cpu", cpu[0], "%"),
        Figure("idle_standby_cpu", cpu[1], "%"),
        Figure("standby_rss", meters[1].rss, "MiB", "<=", RSS_TARGET),
    ]


async def quiet(bench: Bench, since: int, seconds: float = 10.0) -> None:
    """Wait until the operator has written nothing for ``seconds``."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        written = bench.written(bench.first, since)
        if not written or (datetime.now(UTC) - written[-1].at).total_seconds() > seconds:
            return
        await asyncio.sleep(1)
    raise RuntimeError("the operator does not stop writing")


def _ready_since(service: Object) -> datetime:
    return datetime.fromisoformat(condition(service, "Ready")["lastTransitionTime"].replace("Z", "+00:00"))
