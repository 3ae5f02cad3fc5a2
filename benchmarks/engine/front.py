"""What the front process costs: CPU time per streamed token with 256 streams, from engine message to socket.

The engine is one that only counts (``token_source``), so nothing but the HTTP side works: requests, detokenizer,
events, sockets. CPU time of the front processes comes from /proc, over a window in which all streams run, the kernel's
share of sending included. Every token must leave as an event of its own: a front that cannot keep up puts several into
one, which is cheaper, so the engine's pace is lowered until that does not happen. Every answer's text is checked.

The rate of one and of two fronts is measured with an engine faster than both. Generator and engine need CPUs of their
own for that: with fewer than four the ratio says nothing about the fronts, and has no target.

    python -m benchmarks.engine.front        QUICK=1 for a short run
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
OVERLOAD_PACE: Final = 0.002
"""128,000 tokens a second: more than two fronts can send."""
TARGET_US: Final = 50.0
TARGET_RATIO: Final = 1.8


@contextlib.contextmanager
def server(pace: float, fronts: int = 1) -> Iterator[tuple[int, psutil.Process]]:
    """Port and main process of a running server."""
    command = [
        *(sys.executable, "-m", "benchmarks.engine.token_source", "--model", str(MODEL), "--load_format", "dummy"),
        *("--host", "127.0.0.1", "--port", "0", "--log_level", "WARNING"),
    ]
    if fronts > 1:
        command += ["--api_server_count", str(fronts)]
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


def front_processes(main: psutil.Process) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The fronts, and the engine."""
    children = main.children()
    engines = [child for child in children if "blade_llm.engine.process" in child.cmdline()]
    return [main, *(child for child in children if child not in engines)], engines


def pin(fronts: list[psutil.Process], others: list[int]) -> None:
    """A CPU for each front and the remaining ones for the rest, if there are enough."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) <= len(fronts):
        return
    for front, cpu in zip(fronts, cpus, strict=False):
        os.sched_setaffinity(front.pid, {cpu})
    for pid in others:
        os.sched_setaffinity(pid, set(cpus[len(fronts) :]))


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """User and system time so far; from schedstat, whose unit is a nanosecond and not a clock tick."""
    spent = 0
    for process in processes:
        for task in Path(f"/proc/{process.pid}/task").iterdir():
            spent += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return spent / 1e9


def run(path: str, pace: float, fronts: int = 1) -> tuple[float, float, float]:
    """CPU microseconds per event, events per second, and the share of tokens that had an event of their own."""
    tokens = int((WINDOW_SECONDS + 1.5) / pace)
    ids = [token_at(position) for position in range(tokens)]
    text = Tokenizer(MODEL).decode(ids)
    with server(pace, fronts) as (port, main):
        processes, engines = front_processes(main)
        load = Load(port, path, text, tokens, STREAMS, fronts)
        try:
            pin(processes, [*(engine.pid for engine in engines), *load.pids])
            wait_for(lambda: load.count(BEGUN) == STREAMS, load)
            spent, events, begin = cpu_seconds(processes), load.count(EVENTS), time.perf_counter()
            wait_for(lambda: load.count(FINISHED) > 0 or time.perf_counter() > begin + WINDOW_SECONDS, load)
            spent, events = cpu_seconds(processes) - spent, load.count(EVENTS) - events
            seconds = time.perf_counter() - begin
            wait_for(lambda: load.count(FINISHED) == STREAMS, load)
            if load.count(WRONG):
                raise RuntimeError(f"{load.count(WRONG)} of {STREAMS} answers are wrong")
            return spent / events * 1e6, events / seconds, load.count(EVENTS) / (STREAMS * tokens)
        finally:
            load.close()


def wait_for(condition: Callable[[], bool], load: Load) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        if not load.running or time.monotonic() > deadline:
            raise RuntimeError("the streams ended before their time, or not at all")
        time.sleep(0.01)


def cost_per_token(name: str) -> Figure:
    """The least of a few rounds: other work on the machine only adds to it."""
    pace, found = FIRST_PACE, list[float]()
    while len(found) < ROUNDS:
        cost, _, alone = run(PATHS[name], pace)
        if alone > 0.98:
            found.append(cost)
        else:
            pace *= 1.5
    return Figure(f"front_us_per_token_{name}", min(found), "us", "<=", TARGET_US)


def scaling() -> list[Figure]:
    """Events per second of one and of two fronts that have more to do than they can."""
    rates = {fronts: max(run(PATHS["chat"], OVERLOAD_PACE, fronts)[1] for _ in range(ROUNDS)) for fronts in (1, 2)}
    ratio = rates[2] / rates[1]
    enough = len(os.sched_getaffinity(0)) >= 4
    return [
        *(Figure(f"front_events_per_second_{fronts}", rate, "events/s") for fronts, rate in rates.items()),
        Figure("fronts_2_to_1", ratio, "x", ">=", TARGET_RATIO) if enough else Figure("fronts_2_to_1", ratio, "x"),
    ]


def main() -> int:
    return report("front", [*(cost_per_token(name) for name in PATHS), *scaling()])


if __name__ == "__main__":
    sys.exit(main())
