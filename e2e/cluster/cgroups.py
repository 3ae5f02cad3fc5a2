"""The cgroup that holds all pods of one cluster, in every hierarchy of this machine.

With one of its own a kubelet never sees, and never cleans up, the pods of another kubelet on the same machine.
"""

import errno
import time
from pathlib import Path
from typing import Final

from e2e.cluster.layout import Layout

EMPTYING_SECONDS: Final = 20.0
"""Until processes that were killed have left their cgroups; the kernel takes its time on a busy machine."""


def hierarchies() -> list[Path]:
    """Roots of the cgroup hierarchies: one each for version 1 and hybrid, a single one for version 2."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted({Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")})


def cgroups(layout: Layout) -> list[Path]:
    """The cluster's cgroup wherever it exists."""
    return [path for root in hierarchies() if (path := root / layout.network).is_dir()]


def make_cgroups(layout: Layout) -> None:
    for root in hierarchies():
        folder = root / layout.network
        folder.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1: empty, and useless, until they are set
            if (root / setting).exists():
                (folder / setting).write_text((root / setting).read_text())


def members(layout: Layout) -> set[int]:
    """Processes in any of the cluster's cgroups: those of its containers."""
    files = [file for folder in cgroups(layout) for file in folder.rglob("cgroup.procs")]
    return {int(pid) for file in files for pid in _read(file).split()}


def remove_cgroups(layout: Layout) -> None:
    """Remove the cgroups once they are empty. Raises OSError for one that does not get empty."""
    deadline = time.monotonic() + EMPTYING_SECONDS
    for top in cgroups(layout):
        below = sorted((path for path in top.rglob("*") if path.is_dir()), key=lambda path: len(path.parts))
        for folder in (*reversed(below), top):
            _remove(folder, deadline)


def _remove(folder: Path, deadline: float) -> None:
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the cgroup went away meanwhile, or (version 2) holds threads
        return ""
