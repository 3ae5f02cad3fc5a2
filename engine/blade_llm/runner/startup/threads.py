"""The number of torch threads, and how they wait for each other.

Hyper-threads and cores beyond the container's quota only make a step slower. So does long spinning: OpenMP's threads
by default burn their time slice while they wait for one that is not running, and with any neighbour on the cores a
step of a small model then takes twenty times as long (measured with two threads on two busy cores).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path

SPINS = 20_000
"""The number of times a waiting OpenMP thread polls before it sleeps: about a millisecond. Without any, a decode step
of a 0.5B model on two idle cores takes a quarter longer; for ever (the default), a busy neighbour makes it many times
longer."""

SHORT_STEP_SECONDS = 0.012
"""A model whose warm-up batch (a short prefill and a decode) takes one thread less than this keeps to one thread: its
parallel regions last microseconds, and waiting for a thread whose core another process has just taken, milliseconds."""


def requested_threads(requested: int | None, environment: Mapping[str, str] = os.environ) -> int | None:
    """``requested``, else ``OMP_NUM_THREADS``, else None: the engine may choose."""
    if requested is not None:
        return max(1, requested)
    configured = environment.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(configured) if configured.isdigit() and int(configured) > 0 else None


def usable_cores(root: Path = Path("/")) -> int:
    """The physical cores this process may use, within the CPU quota.

    ``root`` is where ``/proc`` and ``/sys`` are found (tests put their own there).
    """
    cores = physical_cores(sorted(os.sched_getaffinity(0)), root)
    quota = cpu_quota(root)
    return cores if quota is None else max(1, min(cores, int(quota)))


def spin_briefly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Tell OpenMP how long to spin, unless the user did. Works only before torch is imported."""
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(SPINS))


def physical_cores(cpus: list[int], root: Path = Path("/")) -> int:
    """Distinct physical cores among these logical CPUs; every CPU its own core where the system does not say."""
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        cores.add(_read(topology / "thread_siblings_list") or str(cpu))
    return len(cores)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """CPUs the cgroup (v2 or v1, or a parent) allows; None without a limit."""
    quotas: list[float] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            base = root / "sys/fs/cgroup/cpu"
        else:
            continue
        folder = base / path.lstrip("/")
        for level in (folder, *(parent for parent in folder.parents if parent.is_relative_to(base))):
            numbers = (
                _read(level / "cpu.max") or f"{_read(level / 'cpu.cfs_quota_us')} {_read(level / 'cpu.cfs_period_us')}"
            ).split()
            if len(numbers) == 2 and all(number.isdigit() for number in numbers) and int(numbers[1]):
                quotas.append(int(numbers[0]) / int(numbers[1]))
    return min(quotas, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
