"""What deciding on the engines of 1,000 services costs the operator: CPU, and writes of statuses.

Everything is real but the routers' numbers and the time: half an hour passes in which the load of every service drifts
and jitters, and each is looked at as often as the controller looks at so many. Asking a router is measured beside it,
on a socket, with the operator's own client.

    python -m benchmarks.operator.decisions        QUICK=1 for 100 services
"""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from benchmarks.figures import QUICK, Figure, report
from blade_operator.controller.controller import MAX_RESYNC_RATE
from blade_operator.fleet import Fleet
from blade_operator.model.objects import Object
from blade_operator.model.observed import Observed
from blade_operator.reconcile.scaling.scale import PERIOD, scale
from blade_operator.spec import apply_defaults, parse_service
from blade_protocol.labels import API_VERSION, KIND, NAME, ROLE, ROLE_ENGINE, ROLE_ROUTER
from blade_protocol.signals import Percentiles, RouterSignals, ServiceSignals

SERVICES = 100 if QUICK else 1000
ROUTERS = 2
SECONDS = 900.0 if QUICK else 1800.0
QUERIES = 500
SPACING = max(PERIOD, 1000 / MAX_RESYNC_RATE)
"""Seconds between two looks at a service where there are 1,000."""
CORE_TARGET = 10.0
"""Percent of one core."""
SCALING = {"mode": "SLO", "min": 1, "max": 16, "slo": {"ttft": "500ms", "tpot": "40ms"}}


class Service:
    """A service, its pods, and a load that drifts by the minute and jitters from one look to the next."""

    def __init__(self, number: int) -> None:
        self.random = random.Random(number)
        self.arrivals = self.random.uniform(0.2, 6.0)
        self.tokens = self.requests = 0
        self.writes = 0
        metadata = {"name": f"s{number:04}", "namespace": "team", "uid": str(number), "generation": 1}
        spec = {"model": {"uri": "file:///m"}, "scaling": SCALING}
        obj = apply_defaults({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec})
        self.parsed = parse_service(obj)
        routers = [_pod(ROLE_ROUTER, f"{metadata['name']}-router-{index}") for index in range(ROUTERS)]
        self.observed = Observed(service=obj, pods=(*routers, _pod(ROLE_ENGINE, f"{metadata['name']}-engine-0")))

    def look(self, now: datetime) -> None:
        """One decision, and what is written of it."""
        signals = self._signals(now.timestamp())
        found = scale(self.parsed, dataclasses.replace(self.observed, signals=signals), now)
        status = self.observed.service.get("status") or {}
        assert found.judgement is not None
        condition = {"type": "Scaling", **dataclasses.asdict(found.judgement)}
        written: dict[str, Any] = {"scaling": found.status, "conditions": [condition]}
        service = self.observed.service
        if status != written:
            self.writes += 1
            service = {**service, "status": written}
        pods = [pod for pod in self.observed.pods if pod["metadata"]["labels"][ROLE] == ROLE_ROUTER]
        pods += [_pod(ROLE_ENGINE, f"e{index}") for index in range(found.replicas)]
        self.observed = dataclasses.replace(
            self.observed, service=service, pods=tuple(pods), autoscaler=found.autoscaler
        )

    def _signals(self, at: float) -> dict[str, RouterSignals]:
        draw = self.random
        self.arrivals = max(0.1, self.arrivals * draw.uniform(0.97, 1.03))
        engines = len(self.observed.pods) - ROUTERS
        busy = min(0.95, self.arrivals / engines / 2)
        tpot, ttft = 0.02 / (1 - busy) * draw.uniform(0.95, 1.05), 0.1 / (1 - busy) * draw.uniform(0.9, 1.1)
        self.requests += int(self.arrivals * SPACING)
        self.tokens += int(self.arrivals * 200 * SPACING)
        signals = RouterSignals(
            started=0.0,
            time=at,
            arrivals=self.requests // ROUTERS,
            arrivals_per_second=self.arrivals / ROUTERS * draw.uniform(0.9, 1.1),
            prompt_tokens=self.tokens,
            completion_tokens=self.tokens,
            ttft_seconds=Percentiles(p50=ttft, p90=1.6 * ttft, p99=3 * ttft),
            tpot_seconds=Percentiles(p50=tpot, p90=1.2 * tpot, p99=1.5 * tpot),
            services=(ServiceSignals(service="s", running=int(self.arrivals * 4)),),
        )
        return {
            pod["metadata"]["name"]: signals
            for pod in self.observed.pods
            if pod["metadata"]["labels"][ROLE] == ROLE_ROUTER
        }


def _pod(role: str, name: str, port: int = 0) -> Object:
    ports = [{"name": "admin", "containerPort": port}]
    return {
        "metadata": {"name": name, "namespace": "team", "labels": {ROLE: role, NAME: "s"}},
        "spec": {"containers": [{"name": role, "ports": ports}]},
        "status": {
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": role, "started": True}],
        },
    }


def decide() -> list[Figure]:
    """Half an hour of all services."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    services = [Service(number) for number in range(SERVICES)]
    for service in services:
        service.look(now)  # everything is read and written for the first time
        service.writes = 0
    looks, begin = round(SECONDS / SPACING), time.process_time()
    for _ in range(looks):
        now += timedelta(seconds=SPACING)
        for service in services:
            service.look(now)
    cpu = time.process_time() - begin
    writes = [60 * service.writes / SECONDS for service in services]
    return [
        Figure("decision_cpu", 1e3 * cpu / looks / SERVICES, "ms"),
        Figure("status_writes_mean", sum(writes) / SERVICES, "writes/min"),
        Figure("status_writes_most", max(writes), "writes/min", "<=", 1.0),
    ]


async def query() -> Figure:
    """The operator's CPU for one router that is asked for its signals."""
    with _router() as port:
        pods = [_pod(ROLE_ROUTER, f"router-{index}", port) for index in range(10)]
        async with Fleet(5.0) as fleet:
            assert len((await fleet.query(pods, signals=True)).signals) == len(pods)
            begin = time.process_time()
            for _ in range(QUERIES // len(pods)):
                await fleet.query(pods, signals=True)
            return Figure("router_query_cpu", 1e3 * (time.process_time() - begin) / QUERIES, "ms")


@contextmanager
def _router() -> Iterator[int]:
    """The port of a process that always says the same."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(connection: Any) -> None:
    body = msgspec.json.encode(RouterSignals(started=1.0, time=2.0, services=(ServiceSignals(service="s"),)))
    response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(response)
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        connection.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def main() -> int:
    """Measure, print and write the figures."""
    figures = [*decide(), asyncio.run(query())]
    cpu = {figure.name: figure.value for figure in figures}
    each = cpu["decision_cpu"] + ROUTERS * cpu["router_query_cpu"]
    share = 100 * each / 1e3 * 1000 / SPACING
    figures += [
        Figure("spacing", SPACING, "s"),
        Figure("decision_loop_core", share, "% of a core", "<=", CORE_TARGET),
    ]
    return report("operator_decisions", figures)


if __name__ == "__main__":
    sys.exit(main())
