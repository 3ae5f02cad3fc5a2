"""Cost of the API-server process: CPU time per streamed token with 256 streams, from engine message to socket.

The engine is one that only counts (``token_source``), so nothing but the HTTP side works: requests, detokenizer,
events, sockets. CPU time of the API-server processes comes from /proc, over a window in which all streams run, with the
kernel's share of sending. Every token must leave as an event of its own: a server that cannot keep up puts several into
one, which is cheaper, so the engine's pace is lowered until that does not happen. Every response's text is checked.

The gain of two API servers over one is the CPU time of the one over that of the busier of the two, under the same load:
which of them is used up first decides, and no CPU need be saturated to know it. Generator and engine need CPUs of their
own even so: with fewer than four in all the ratio has no target.

    python -m benchmarks.engine.api_server        QUICK=1 for a short run
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil

from benchmarks.engine.stream_load import BEGUN, EVENTS, FINISHED, WRONG, Load
from benchmarks.engine.token_source import STEP_SECONDS, token_at
from benchmarks.figures import QUICK, Figure, report
from blade_llm.text.tokenizer import Tokenizer

MODEL: Final = Path(__file__).parents[2] / "examples" / "demo_model" / "model"
STREAMS: Final = 256
WINDOW_SECONDS: Final = 2.0 if QUICK else 6.0
ROUNDS: Final = 1 if QUICK else 3
PATHS: Final = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
FIRST_PACE: Final = 0.012
TARGET_US: Final = 50.0
TARGET_RATIO: Final = 1.8
ENOUGH_CPUS: Final = 4


@contextlib.contextmanager
def server(pace: float, api_servers: int = 1) -> Iterator[tuple[int, psutil.Process]]:
    """Port and main process of a running server."""
    command = [
        *(sys.executable, "-m", "benchmarks.engine.token_source", "--model", str(MODEL), "--load_format", "dummy"),
        *("--host", "127.0.0.1", "--port", "0", "--log_level", "WARNING"),
    ]
    if api_servers > 1:
        command += ["--api_server_count", str(api_servers)]
    environment = {**os.environ, STEP_SECONDS: str(pace)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, b"")
            found = next((match for line in lines if (match := re.search(rb"API ready at .+:(\d+)", line))), None)
            if found is None:
                raise RuntimeError("the server did not start")
            yield int(found[1]), psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait()


def server_processes(main: psutil.Process) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """API-server processes, and engine processes."""
    children = main.children()
    engines = [child for child in children if "blade_llm.engine.process" in child.cmdline()]
    return [main, *(child for child in children if child not in engines)], engines


def pin(api_servers: list[psutil.Process], others: list[int]) -> None:
    """Pin each API server to a CPU and the rest to the remaining ones, if there are enough for two servers."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < ENOUGH_CPUS:
        return
    for api_server, cpu in zip(api_servers, cpus, strict=False):
        os.sched_setaffinity(api_server.pid, {cpu})
    for pid in others:
        os.sched_setaffinity(pid, set(cpus[len(api_servers) :]))


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time so far; from schedstat, whose unit is a nanosecond and not a clock tick."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


def run(path: str, pace: float, api_servers: int = 1) -> tuple[list[float], float]:
    """CPU microseconds of each API server per event of all, and the share of tokens that had an event of their own."""
    tokens = int((WINDOW_SECONDS + 1.5) / pace)
    ids = [token_at(position) for position in range(tokens)]
    text = Tokenizer(MODEL).decode(ids)
    with server(pace, api_servers) as (port, main):
        processes, engines = server_processes(main)
        load = Load(port, path, text, tokens, STREAMS, api_servers)
        try:
            pin(processes, [*(engine.pid for engine in engines), *load.pids])
            wait_for(lambda: load.count(BEGUN) == STREAMS, load)
            begun, events, begin = [*map(cpu_seconds, processes)], load.count(EVENTS), time.perf_counter()
            wait_for(lambda: load.count(FINISHED) > 0 or time.perf_counter() > begin + WINDOW_SECONDS, load)
            ended, events = [*map(cpu_seconds, processes)], load.count(EVENTS) - events
            wait_for(lambda: load.count(FINISHED) == STREAMS, load)
            if load.count(WRONG):
                raise RuntimeError(f"{load.count(WRONG)} of {STREAMS} responses are wrong")
            costs = [(after - before) / events * 1e6 for before, after in zip(begun, ended, strict=True)]
            return costs, load.count(EVENTS) / (STREAMS * tokens)
        finally:
            load.close()


def wait_for(condition: Callable[[], bool], load: Load) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if not load.running or time.monotonic() > deadline:
            raise RuntimeError("the streams ended before their time, or not at all")
        time.sleep(0.01)


def costs_per_token(path: str, api_servers: int = 1) -> list[list[float]]:
    """CPU time of each API server, in a few rounds."""
    pace, found = FIRST_PACE, list[list[float]]()
    while len(found) < ROUNDS:
        costs, alone = run(path, pace, api_servers)
        if alone > 0.98:
            found.append(costs)
        else:
            pace *= 1.5
    return found


def main() -> int:
    # The least of the rounds: other work on the machine only adds.
    one = {name: min(sum(costs) for costs in costs_per_token(path)) for name, path in PATHS.items()}
    busier = min(max(costs) for costs in costs_per_token(PATHS["chat"], api_servers=2))
    target = (">=", TARGET_RATIO) if len(os.sched_getaffinity(0)) >= ENOUGH_CPUS else ("", 0.0)
    return report(
        "front",
        [
            *(Figure(f"front_us_per_token_{name}", cost, "us", "<=", TARGET_US) for name, cost in one.items()),
            Figure("fronts_2_to_1", one["chat"] / busier, "x", *target),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
