"""What no user of Kubernetes can do, but a machine can: kill a container's process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from e2e.cluster import Cluster, OwnNode
from e2e.cluster.cgroups import members
from e2e.support.service import Object


def own_node(cluster: Cluster) -> OwnNode:
    """The cluster if its node's processes are on this machine; skips the test otherwise."""
    if not isinstance(cluster, OwnNode):
        pytest.skip("needs the cluster of KUBE_ASSETS, whose node is this machine")
    return cluster


def kill_container(cluster: Cluster, pod: Object, container: str) -> None:
    """SIGKILL for the container's first process; the kernel then ends the others."""
    inside = _processes(cluster, pod, container)
    first = [pid for pid in inside if _parent(pid) not in inside]
    assert len(first) == 1, f"{container} of {pod['metadata']['name']}: processes {inside}, of which first: {first}"
    os.kill(first[0], signal.SIGKILL)


def kill_process(cluster: Cluster, pod: Object, container: str, command: str) -> None:
    """SIGKILL for the container's one process that has ``command`` in its command line."""
    inside = _processes(cluster, pod, container)
    [pid] = [pid for pid in inside if command in _read(pid, "cmdline")]
    os.kill(pid, signal.SIGKILL)


def _processes(cluster: Cluster, pod: Object, container: str) -> list[int]:
    [identity] = [
        str(status["containerID"]).removeprefix("containerd://")
        for status in pod["status"]["containerStatuses"]
        if status["name"] == container
    ]
    return [pid for pid in members(own_node(cluster).layout) if identity in _read(pid, "cgroup")]


def _parent(pid: int) -> int:
    """0 when it has ended."""
    return next((int(line.split()[1]) for line in _read(pid, "status").splitlines() if line.startswith("PPid:")), 0)


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:  # it ended meanwhile
        return ""
