"""How long an engine with the shape of Qwen2.5-0.5B takes from its start to its first 200 on ``/health``: at its first
start, which writes the packed weights, and at later ones, which map them; and what two replicas of it share.

    python -m benchmarks.engine.startup        QUICK=1 for fewer starts
"""

from __future__ import annotations

import http.client
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import QUICK, Figure, report
from benchmarks.fleet import Program, engine
from benchmarks.peers.model import random_model

STARTS = 2 if QUICK else 5
TARGET_SECONDS = 1.5


def started(folder: Path, model: Path, name: str) -> tuple[Program, float]:
    """A healthy engine, and the seconds it took."""
    start = time.perf_counter()
    program = engine(folder, "--packed_cache_dir", str(folder / "packed"), model=model, name=name, threads=2)
    try:
        while not is_healthy(program):
            if program.process.poll() is not None or time.perf_counter() - start > 60:
                raise AssertionError(f"the engine does not start:\n{program.log.read_text()}")
            time.sleep(0.005)
    except BaseException:
        program.kill()
        raise
    return program, time.perf_counter() - start


def is_healthy(program: Program) -> bool:
    """Asked without an HTTP library: to set one up for every question would take a core from the engine."""
    connection = http.client.HTTPConnection("127.0.0.1", program.port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def memory(pid: int) -> dict[str, int]:
    """Bytes by kind, from ``/proc/PID/smaps_rollup``."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}


def engine_pid(program: Program) -> int:
    """The process with the weights."""
    children = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children").read_text(encoding="ascii")
    return max(map(int, children.split()), key=lambda pid: memory(pid)["Rss"])


def packed_file(folder: Path, seconds: float = 60.0) -> Path:
    """The file of packed weights, once it is complete."""
    deadline = time.monotonic() + seconds
    while not (found := list((folder / "packed").glob("*.packed"))):
        if time.monotonic() > deadline:
            raise AssertionError(f"no packed weights after {seconds} s")
        time.sleep(0.1)
    return found[0]


def main() -> int:
    # Not in /tmp, which may be memory: then nothing would be read from a disk's cache.
    with tempfile.TemporaryDirectory(dir=Path.home() / ".cache") as name:
        folder = Path(name)
        model = random_model(folder / "model")
        program, first = started(folder, model, "first")
        packed = packed_file(folder).stat().st_size
        program.kill()
        later = []
        for number in range(STARTS):
            program, seconds = started(folder, model, f"later-{number}")
            later.append(seconds)
            program.kill()
        one, _ = started(folder, model, "one")
        alone = memory(engine_pid(one))
        two, _ = started(folder, model, "two")
        both = [memory(engine_pid(program)) for program in (one, two)]
        for program in (one, two):
            program.kill()
    mib = 1 << 20
    return report(
        "startup",
        [
            Figure("first_start", first, "s"),
            Figure("later_start", min(later), "s", "<=", TARGET_SECONDS),
            Figure("packed_file", packed / mib, "MiB"),
            Figure("pss_one_replica", alone["Pss"] / mib, "MiB"),
            Figure("pss_two_replicas", sum(each["Pss"] for each in both) / mib, "MiB"),
            Figure("shared_of_each", min(each["Shared_Clean"] for each in both) / packed, "packed files", ">=", 0.95),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
