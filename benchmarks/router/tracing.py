"""What tracing costs the router: CPU time a request with traces of 1 % of requests, divided by that without tracing.

Two routers on one CPU over engines of their own, measured in turn for a moment each, in changing order; the collector
and the load are on another CPU. All CPU time of a router counts, also what its threads do afterwards: sending spans.
Two processes of the same router differ by a few per cent for as long as they live, so each block of measurements has
new ones. The figure is the median over the blocks.

    python -m benchmarks.router.tracing        QUICK=1: fewer blocks
"""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import statistics
import sys
import threading
from collections.abc import Iterator

import uvloop

from benchmarks.figures import QUICK, Figure, report
from benchmarks.router.engines import fleet
from benchmarks.router.load import crowd, right
from benchmarks.router.prompts import grouped
from benchmarks.router.routers import LOAD_CPU, PYTHON, Router, ours, started
from blade_telemetry.export import FLUSH_SECONDS

RATIO = "0.01"
BLOCKS = 3 if QUICK else 10
PAIRS = 6
"""Of a block."""
SECONDS = 0.7
AFTERWARDS = FLUSH_SECONDS + 0.5
"""Seconds until everything is sent."""
CALLERS = 64


@contextlib.contextmanager
def collecting() -> Iterator[tuple[str, list[int]]]:
    """A collector's URL, and the sizes of what it got."""
    sizes: list[int] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sizes.append(len(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", sizes
    finally:
        server.shutdown()


async def load(router: Router) -> int:
    """Send it requests for a moment; returns how many."""
    return right(await crowd(router.port, CALLERS, grouped(2_000), seconds=SECONDS)).done


async def measure(url: str, number: int) -> tuple[float, float]:
    """Microseconds of CPU a request without and with tracing, in one block."""
    without, traced = ours(), ours("--otlp_endpoint", url, "--trace_sampling", RATIO)
    async with fleet() as some, fleet() as others, started(without, some) as off, started(traced, others) as on:
        routers = (off, on)
        for router in routers:  # warm
            await load(router)
        await asyncio.sleep(AFTERWARDS)  # what is done only once is over: the first request to the collector
        before = [router.cpu() for router in routers]
        requests = [0, 0]
        for pair in range(PAIRS):
            for which in (0, 1) if (number + pair) % 2 else (1, 0):
                requests[which] += await load(routers[which])
        await asyncio.sleep(AFTERWARDS)
        used = [router.cpu() - start for router, start in zip(routers, before, strict=True)]
    return used[0] / requests[0] * 1e6, used[1] / requests[1] * 1e6


def main() -> int:
    print(f"ours runs on {PYTHON}")
    os.sched_setaffinity(0, {LOAD_CPU})
    with collecting() as (url, sizes), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        blocks = [runner.run(measure(url, number)) for number in range(BLOCKS)]
        received = len(sizes)
    off, on = zip(*blocks, strict=True)
    figures = [
        Figure("router_cpu_per_request_without_tracing", statistics.median(off), "us"),
        Figure("router_cpu_per_request_traced", statistics.median(on), "us"),
        Figure("router_tracing_cpu", statistics.median(b / a for a, b in blocks), "x", "<=", 1.03),
        Figure("router_tracing_exports", received, "requests", ">=", 1),
    ]
    return report("router_tracing", figures)


if __name__ == "__main__":
    sys.exit(main())
