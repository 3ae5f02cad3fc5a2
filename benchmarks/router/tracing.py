"""What tracing costs the router: CPU time a request with traces of 1 % of requests, divided by that without tracing.

Two routers on one CPU over engines of their own, measured in turn for a moment each, in changing order; the collector
and the load are on another CPU. The figure is the median over the pairs.

    python -m benchmarks.router.tracing        QUICK=1: fewer pairs
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

RATIO = "0.01"
PAIRS = 8 if QUICK else 40
SECONDS = 0.7
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


async def cost(router: Router) -> float:
    """Microseconds of CPU a request."""
    before = router.cpu()
    outcome = right(await crowd(router.port, CALLERS, grouped(2_000), seconds=SECONDS))
    return (router.cpu() - before) / outcome.done * 1e6


async def measure(url: str) -> tuple[list[float], list[float]]:
    """Microseconds a request without and with tracing, pair by pair."""
    without, traced = ours(), ours("--otlp_endpoint", url, "--trace_sampling", RATIO)
    costs: tuple[list[float], list[float]] = ([], [])
    async with fleet() as some, fleet() as others, started(without, some) as off, started(traced, others) as on:
        for router in (off, on):  # warm
            await cost(router)
        for number in range(PAIRS):
            for which in (0, 1) if number % 2 else (1, 0):
                costs[which].append(await cost((off, on)[which]))
    return costs


def main() -> int:
    print(f"ours runs on {PYTHON}")
    os.sched_setaffinity(0, {LOAD_CPU})
    with collecting() as (url, sizes), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        off, on = runner.run(measure(url))
        received = len(sizes)
    figures = [
        Figure("router_cpu_per_request_without_tracing", min(off), "us"),
        Figure("router_cpu_per_request_traced", min(on), "us"),
        Figure("router_tracing_cpu", statistics.median(b / a for a, b in zip(off, on, strict=True)), "x", "<=", 1.03),
        Figure("router_tracing_exports", received, "requests", ">=", 1),
    ]
    return report("router_tracing", figures)


if __name__ == "__main__":
    sys.exit(main())
