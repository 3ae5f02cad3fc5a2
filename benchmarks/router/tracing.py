"""What tracing costs the router: CPU time a request with traces of 1 % of requests, divided by that without tracing.

One router whose traces are switched off and on, in turns in changing order: two processes differ by a few per cent. The
collector and the load are on another CPU. All CPU time of the router counts, also what its threads do afterwards:
sending spans. How much two turns without traces differ is printed, too.

    python -m benchmarks.router.tracing        QUICK=1: fewer turns
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
from dataclasses import replace

import uvloop

from benchmarks.figures import QUICK, Figure, report
from benchmarks.router.engines import fleet
from benchmarks.router.load import crowd, right
from benchmarks.router.prompts import grouped
from benchmarks.router.routers import LOAD_CPU, PYTHON, Router, ours, started
from benchmarks.router.switched import Costs, in_turns
from blade_telemetry.export import FLUSH_SECONDS

RATIO = "0.01"
TURNS = 3 if QUICK else 12
SECONDS = 3.0
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


async def turn(router: Router, switch: int) -> float:
    """Microseconds of CPU that a request takes, all that follows from it included."""
    router.signal(switch)
    await asyncio.sleep(0.05)
    before = router.cpu()
    done = right(await crowd(router.port, CALLERS, grouped(2_000), seconds=SECONDS)).done
    await asyncio.sleep(AFTERWARDS)
    return (router.cpu() - before) / done * 1e6


async def measure(url: str) -> list[Costs]:
    kind = replace(ours("--otlp_endpoint", url, "--trace_sampling", RATIO), module="benchmarks.router.switched")
    async with fleet() as engines, started(kind, engines) as router:
        return await in_turns(TURNS, lambda switch: turn(router, switch))


def main() -> int:
    print(f"ours runs on {PYTHON}")
    os.sched_setaffinity(0, {LOAD_CPU})
    with collecting() as (url, sizes), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        turns = runner.run(measure(url))
        received = len(sizes)
    figures = [
        Figure("router_cpu_per_request_without_tracing", statistics.median(each.without for each in turns), "us"),
        Figure("router_cpu_per_request_traced", statistics.median(each.on for each in turns), "us"),
        Figure("router_tracing_cpu", statistics.median(each.on / each.without for each in turns), "x", "<=", 1.03),
        Figure("router_tracing_off_by_off", statistics.median(each.same for each in turns), "x"),
        Figure("router_tracing_exports", received, "requests", ">=", 1),
    ]
    return report("router_tracing", figures)


if __name__ == "__main__":
    sys.exit(main())
