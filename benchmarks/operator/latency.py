"""How long a user waits for the first engine pod: one service applied per second, while others exist."""

from __future__ import annotations

import asyncio
import statistics
import time

import msgspec

from benchmarks.figures import QUICK, Figure
from benchmarks.operator.bench import Bench
from blade_operator.cluster.kubernetes.api import ConnectionPool, credentials, load_configuration
from blade_operator.cluster.kubernetes.kinds import KINDS
from blade_operator.model.objects import Key
from blade_protocol.labels import NAME, ROLE, ROLE_ENGINE
from e2e.support.fake_service import fake_service

EXISTING = 20 if QUICK else 100
APPLIED = 8 if QUICK else 30
TARGET = 1.0
_PODS = KINDS["Pod"]


async def measure(bench: Bench) -> list[Figure]:
    """The services are deleted again afterwards."""
    namespace = bench.namespace("latency")
    with bench.operator(bench.first) as operator:
        await bench.apply(Key(namespace, f"old{number:03}") for number in range(EXISTING))
        await bench.all_ready(EXISTING, 300)
        await asyncio.sleep(5)

        names = [f"new{number:03}" for number in range(APPLIED)]
        born: dict[str, float] = {}
        watch = asyncio.create_task(_births(bench, namespace, born))
        await asyncio.sleep(1)
        sent = {}
        for name in names:
            second = asyncio.create_task(asyncio.sleep(1))
            sent[name] = time.perf_counter()
            await bench.admin.create(fake_service(namespace, name))
            await second
        await bench.all_ready(EXISTING + APPLIED, 120)
        watch.cancel()
        await bench.check()
        operator.kill()
    await asyncio.to_thread(bench.cluster.kubectl, "delete", "namespace", namespace, "--timeout=600s")

    waited = sorted(born[name] - sent[name] for name in names)
    return [
        Figure("apply_to_pods_p50", statistics.median(waited), "s"),
        Figure("apply_to_pods_p95", waited[round(0.95 * (APPLIED - 1))], "s", "<=", TARGET),
        Figure("apply_to_pods_max", waited[-1], "s"),
    ]


async def _births(bench: Bench, namespace: str, born: dict[str, float]) -> None:
    """When the first engine pod of each service was reported by a watch."""
    selector = {"labelSelector": f"{ROLE}={ROLE_ENGINE}"}
    listed = await bench.admin.api.get(_PODS.path(namespace), selector, kind=_PODS.name)
    since = {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"]}
    configuration = await load_configuration(str(bench.cluster.kubeconfig))
    pool = ConnectionPool(configuration)
    url, headers = configuration.host + _PODS.path(namespace), await credentials(configuration)
    try:
        async with pool.pool_manager.get(url, params={**selector, **since}, headers=headers) as response:
            async for line in response.content:
                event = msgspec.json.decode(line)
                if event["type"] == "ADDED":
                    born.setdefault(event["object"]["metadata"]["labels"][NAME], time.perf_counter())
    finally:
        await pool.close()
