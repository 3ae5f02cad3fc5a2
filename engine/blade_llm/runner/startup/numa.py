"""Each rank on its own part of a host with several NUMA nodes: its cores, and memory beside them.

Memory of another socket is read at a fraction of the speed, and a decode does little else than read weights. So ranks
get equal parts of the cores in the order of nodes; where there are as many ranks as nodes, each gets a node.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blade_llm.runner.startup.threads import cpu_quota, physical_cores

logger = logging.getLogger(__name__)

_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}
"""Number of the system call, which libc has no function for."""
_MPOL_PREFERRED: Final = 1
"""Memory of other nodes where this one has none left."""
_MPOL_INTERLEAVE: Final = 3
_BOUND_BY_USER: Final = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_bound = False
"""Whether this process has cores of its own. A process is one rank and stays it."""


@dataclass(frozen=True)
class NumaNode:
    """A node's cores that this process may use."""

    number: int
    cores: tuple[tuple[int, ...], ...]
    """Of each core its logical CPUs, hyper-threads together."""


@dataclass(frozen=True)
class RankPlace:
    """What a rank is bound to."""

    cpus: frozenset[int]
    nodes: tuple[int, ...]
    """Whose memory is near to all or some of ``cpus``."""


def place_ranks(nodes: Sequence[NumaNode], ranks: int) -> list[RankPlace] | None:
    """Where each of ``ranks`` goes; None where there is nothing to choose: one node, or fewer cores than ranks.

    Parts are equal to one core, since ranks wait for the slowest, so one may lie in two nodes.
    """
    usable = [node for node in nodes if node.cores]
    cores = [(node.number, core) for node in usable for core in node.cores]
    if len(usable) < 2 or ranks < 2 or len(cores) < ranks:
        return None
    places = []
    for rank in range(ranks):
        own = cores[rank * len(cores) // ranks : (rank + 1) * len(cores) // ranks]
        cpus = frozenset(cpu for _, core in own for cpu in core)
        places.append(RankPlace(cpus, tuple(sorted({number for number, _ in own}))))
    return places


def read_nodes(allowed: Collection[int], root: Path = Path("/")) -> list[NumaNode]:
    """The nodes of this host with those of their logical CPUs that are ``allowed``, by number; empty where the system
    does not say. ``root`` is where ``/sys`` is found."""
    found = []
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        cores: dict[str, list[int]] = {}
        for cpu in _numbers(_read(folder / "cpulist")):
            if cpu in allowed:
                siblings = _read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
                cores.setdefault(siblings or str(cpu), []).append(cpu)
        found.append(NumaNode(int(folder.name.removeprefix("node")), tuple(map(tuple, cores.values()))))
    return sorted(found, key=lambda node: node.number)


def bind_rank(
    local_rank: int, ranks: int, root: Path = Path("/"), environment: Mapping[str, str] = os.environ
) -> RankPlace | None:
    """Bind the calling thread, and those that it starts, as rank ``local_rank`` of ``ranks`` on this host.

    To be called before torch's threads start, and after processes were started that shall be elsewhere. Returns what it
    is bound to; None, with nothing changed, on one node, where the user has bound OpenMP's threads, and where the
    system does not let it. The log has one line where there are several nodes.
    """
    global _bound
    nodes = read_nodes(os.sched_getaffinity(0), root)
    places = place_ranks(nodes, ranks)
    if places is None:
        return None
    if by_user := next((name for name in _BOUND_BY_USER if environment.get(name)), None):
        logger.info("%d ranks are not bound to %d NUMA nodes, since %s is set", ranks, len(nodes), by_user)
        return None
    place = places[local_rank]
    try:
        os.sched_setaffinity(0, place.cpus)
    except OSError as error:
        logger.warning("%d ranks are not bound to %d NUMA nodes: %s", ranks, len(nodes), error.strerror)
        return None
    _bound = True
    memory = _prefer_memory(place.nodes)
    logger.info(
        "rank %d of this host has %d CPUs of NUMA node %s%s",
        local_rank,
        len(place.cpus),
        " and ".join(map(str, place.nodes)),
        f"; memory goes where it is first written: {memory}" if memory else "",
    )
    return place


def rank_cores(ranks: int, root: Path = Path("/")) -> int:
    """The physical cores for each of ``ranks`` on this host, within the CPU quota, which they share; of a process that
    is bound its own."""
    cores = physical_cores(sorted(os.sched_getaffinity(0)), root)
    if not _bound:
        cores //= ranks
    quota = cpu_quota(root)
    return max(1, cores if quota is None else min(cores, int(quota) // ranks))


def _prefer_memory(nodes: Sequence[int]) -> str:
    """Let this thread's memory come from ``nodes``; why not, in words, where the system does not let it.

    Containers may forbid it. Memory then still comes from the node whose core writes it first.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"no system call known on {platform.machine()}"
    mask = (ctypes.c_ulong * (max(nodes) // 64 + 1))()
    for node in nodes:
        mask[node // 64] |= 1 << (node % 64)
    mode = _MPOL_PREFERRED if len(nodes) == 1 else _MPOL_INTERLEAVE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, mode, mask, ctypes.c_ulong(64 * len(mask) + 1)):
        return os.strerror(ctypes.get_errno())
    return ""


def _numbers(text: str) -> list[int]:
    """Of a list like ``0-3,8``."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
