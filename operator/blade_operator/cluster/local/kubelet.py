"""The kubelet: runs every Pod object with one worker each, and owns what the workers share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from blade_operator.cluster.local import clock, pod_status
from blade_operator.cluster.local.container import base_environment
from blade_operator.cluster.local.events import Events
from blade_operator.cluster.local.layout import Layout
from blade_operator.cluster.local.listeners import Listeners
from blade_operator.cluster.local.pod import PodWorker
from blade_operator.cluster.local.process import MARK, ProcessId, kill_strays
from blade_operator.cluster.local.store import Store
from blade_operator.model.objects import Object
from blade_protocol.environment import ENDPOINTS_DIR

THREADS = "OMP_NUM_THREADS"


class Kubelet:
    """Runs the pods; ``sync`` brings what runs in line with the Pod objects."""

    def __init__(self, layout: Layout, store: Store, events: Events, listeners: Listeners) -> None:
        self._layout = layout
        self._listeners = listeners
        self._store = store
        self._events = events
        self._workers: dict[str, PodWorker] = {}

    def sweep(self) -> None:
        """Kill processes and remove folders without a Pod object, before the first ``sync``."""
        pods = self._store.find("Pod")
        kill_strays(self._layout.root, keep=_groups(pods))
        known = {self._layout.pod(pod) for pod in pods}
        for folder in self._layout.pods.glob("*"):
            if folder not in known:
                shutil.rmtree(folder, ignore_errors=True)

    def sync(self) -> None:
        """Start a worker for each new pod and terminate those of deleted pods."""
        pods = {pod["metadata"]["uid"]: pod for pod in self._store.find("Pod")}
        for uid, pod in pods.items():
            if "nodeName" not in pod["spec"] and not pod_status.is_terminating(pod):
                continue  # it waits for the scheduler
            if uid not in self._workers:
                self._workers[uid] = worker = self._worker(pod)
                if not pod_status.is_terminating(pod):
                    worker.start()
            if pod_status.is_terminating(pod):
                deadline = clock.parse(pod["metadata"]["deletionTimestamp"])
                grace = 0.0
                if pod["metadata"]["deletionGracePeriodSeconds"] > 0:
                    grace = max(0.0, (deadline - clock.now()).total_seconds())
                self._workers[uid].terminate(grace)
        for uid in self._workers.keys() - pods.keys():
            del self._workers[uid]

    def refresh(self) -> None:
        """Update mounted configuration and truncate logs, from time to time."""
        for worker in self._workers.values():
            worker.refresh()

    def detach(self) -> None:
        """Stop managing all pods and leave them running."""
        for worker in self._workers.values():
            worker.detach()
        self._workers.clear()

    def _worker(self, pod: Object) -> PodWorker:
        folder = self._layout.pod(pod)
        namespace = pod["metadata"]["namespace"]

        def inherited() -> dict[str, str]:
            return {
                **base_environment(),
                MARK: str(self._layout.root),
                ENDPOINTS_DIR: str(self._layout.endpoints / namespace),
                THREADS: str(self._threads()),
            }

        return PodWorker(pod, folder, self._layout.claims, self._store, self._events, inherited, self._listeners)

    def _threads(self) -> int:
        """Cores for each process that computes when every declared engine runs: each rank of an engine is one."""
        ranks = sum(map(_declared_ranks, self._store.find("LLMService")))
        return max(1, cores() // max(1, ranks))


def _declared_ranks(service: Object) -> int:
    """Ranks of all engines of a service (as many of each as `blade_operator.spec.pod_fields.Gpus.ranks` says)."""
    spec = service["spec"]
    gpus = spec.get("engine", {}).get("gpus", {})
    ranks: int = gpus.get("count") or (gpus.get("tensorParallel") or 1) * gpus.get("pipelineParallel", 1)
    replicas: int = spec.get("replicas", 1)
    return replicas * ranks


def _groups(pods: list[Object]) -> set[int]:
    """Process groups that live containers lead."""
    groups = set()
    for pod in pods:
        status = pod.get("status", {})
        for entry in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
            identity = ProcessId.parse(entry.get("containerID", ""))
            if identity is not None and ProcessId.of(identity.pid) == identity:
                groups.add(identity.pid)
    return groups


def cores() -> int:
    """Cores this process may use: its affinity, and the CPU quota of its cgroup (v2)."""
    available = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return available
    return available if quota == "max" else max(1, min(available, int(quota) // int(period)))
