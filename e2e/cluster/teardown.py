"""Removing a cluster, whatever state it is in: complete, half up after a crash, or already half gone.

Nothing is requested from the cluster itself. Its parts are found on this machine (its cgroup, its network namespace,
its folder), so a lost record hides nothing. The order matters only in that the kubelet goes first, because it would
start containers again.
"""

import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from e2e.cluster.cgroups import cgroups, members, remove_cgroups
from e2e.cluster.layout import Layout
from e2e.cluster.network import remove_network
from e2e.cluster.process import Processes, kill, start_time

CNI_RESULTS = Path("/var/lib/cni/results")
CONTAINER_LOGS = Path("/var/log/containers")
"""Two places that the CNI library and the kubelet do not let anyone change."""


class LeftBehind(Exception):
    """Something of a cluster could not be removed."""


def remove(layout: Layout) -> None:
    """Take the cluster down; raises LeftBehind, naming what stayed."""
    processes = Processes(layout.processes, layout.logs)
    recorded = {name: pid for name in processes.names() if (pid := processes.pid(name)) is not None}
    kill([recorded.pop(name) for name in ("kubelet", "kube-proxy") if name in recorded])
    sockets = _shim_sockets(layout)
    kill([*members(layout), *_shims(layout)])
    kill([*recorded.values()])
    kill([*members(layout), *_shims(layout), *_inside(layout)])

    for mount in _mounts(layout):
        subprocess.run(["umount", "--lazy", mount], capture_output=True)
    for socket in sockets:
        socket.unlink(missing_ok=True)
    for path in (*_cni_results(layout), *_log_links(layout)):
        path.unlink(missing_ok=True)
    remove_cgroups(layout)
    remove_network(layout)
    if not _mounts(layout):  # never through a mount into somebody's files
        shutil.rmtree(layout.folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # other clusters have theirs in it
            layout.folder.parent.rmdir()
    if left := leftovers(layout):
        raise LeftBehind(f"cluster {layout.name} is down, but these stayed: {', '.join(left)}")


def leftovers(layout: Layout) -> list[str]:
    """What of the cluster is still on this machine; empty after `remove`, and before anything was started."""
    processes = Processes(layout.processes, layout.logs)
    pids = {pid for name in processes.names() if (pid := processes.pid(name)) is not None}
    pids |= {*members(layout), *_shims(layout), *_inside(layout)}
    return [
        *(f"process {pid}" for pid in sorted(pids)),
        *(f"mount {path}" for path in _mounts(layout)),
        *(f"cgroup {path}" for path in cgroups(layout)),
        *(f"network namespace {path}" for path in (layout.network_file,) if path.exists()),
        *(f"file {path}" for path in (*_cni_results(layout), *_log_links(layout))),
        *(f"folder {path}" for path in (layout.folder,) if path.exists()),
    ]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _shims(layout: Layout) -> list[int]:
    """containerd's shims: they leave its cgroup and session, but their command line names its socket."""
    found = []
    for pid in _pids():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if str(layout.containerd_socket) in arguments and "containerd-shim" in arguments[0]:
            found.append(pid)
    return found


def _inside(layout: Layout) -> list[int]:
    """Processes in the network namespace, but for this one and those that started it (a test may be among them)."""
    try:
        namespace = layout.network_file.stat().st_ino
    except OSError:
        return []
    own = set()
    pid = os.getpid()
    while pid > 1:
        own.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    found = []
    for pid in _pids():
        try:
            same = os.stat(f"/proc/{pid}/ns/net").st_ino == namespace
        except OSError:
            continue
        if same and pid not in own and start_time(pid) is not None:
            found.append(pid)
    return found


def _mounts(layout: Layout) -> list[str]:
    """Below the cluster's folder, innermost first."""
    targets = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((path for path in targets if path.startswith(f"{layout.folder}/")), reverse=True)


def _shim_sockets(layout: Layout) -> list[Path]:
    """Below /run/containerd/s: a killed shim leaves its socket there; only its own files know the name."""
    files = layout.containerd_state.glob("io.containerd.runtime.v2.task/*/*/bootstrap.json")
    return [Path(json.loads(file.read_text())["address"].removeprefix("unix://")) for file in files]


def _cni_results(layout: Layout) -> list[Path]:
    return list(CNI_RESULTS.glob(f"{layout.network}-*-eth0"))


def _log_links(layout: Layout) -> list[Path]:
    if not CONTAINER_LOGS.is_dir():
        return []
    return [
        link
        for link in CONTAINER_LOGS.iterdir()
        if link.is_symlink() and os.readlink(link).startswith(f"{layout.folder}/")
    ]
