"""The Job controller of the local runtime: one pod for each Job, whose containers run until they succeed.

A program that fails is started again in the same pod (``restartPolicy: OnFailure``), until it has been so often that
the Job fails. Finished Jobs stay until somebody deletes them, their pods with them.
"""

from __future__ import annotations

from typing import Final

from blade_operator.cluster.local import clock
from blade_operator.cluster.local.events import Events
from blade_operator.cluster.local.layout import Layout, progress_file
from blade_operator.cluster.local.pod_objects import PodObjects
from blade_operator.cluster.local.pod_status import is_terminating, restarts
from blade_operator.cluster.local.services import Services
from blade_operator.cluster.local.store import Store
from blade_operator.model.objects import Object, Ref
from blade_protocol.labels import PROGRESS

JOB_NAME: Final = "batch.kubernetes.io/job-name"
"""Label of a Job's pods: Kubernetes' own."""
_BACKOFF_LIMIT: Final = 6
"""Restarts after which a Job fails, where it does not say; Kubernetes' default."""
_MOST_PROGRESS: Final = 1024
"""Characters of a line that says how far a Job is."""


class Jobs:
    """The Job controller; ``sync`` creates Pod objects as the Jobs require, and deletes those of Jobs that fail."""

    def __init__(self, layout: Layout, store: Store, events: Events, services: Services) -> None:
        self._layout = layout
        self._store = store
        self._events = events
        self._pods = PodObjects(store, events, services)

    def sync(self) -> None:
        """Create and delete pods, and write the statuses of Jobs."""
        for job in self._store.find("Job"):
            if not is_finished(job):
                self._sync(job)

    def show_progress(self) -> None:
        """Write what the programs of Jobs say of their progress into the Jobs' annotations, as pods with the right to
        do so do in a cluster."""
        for job in self._store.find("Job"):
            for pod in () if is_finished(job) else self._pods.of(job):
                self._show(job, pod)

    def _show(self, job: Object, pod: Object) -> None:
        try:
            with progress_file(self._layout.pod(pod)).open(encoding="utf-8", errors="replace") as file:
                line = file.read(_MOST_PROGRESS)
        except OSError:
            return
        if line != (job["metadata"].get("annotations") or {}).get(PROGRESS):
            self._store.update(Ref.of(job), lambda edited: _annotate(edited["metadata"], line))

    def _sync(self, job: Object) -> None:
        pods = [pod for pod in self._pods.of(job) if not is_terminating(pod)]
        if not pods:
            pods = [self._pods.create(job, {JOB_NAME: job["metadata"]["name"]})]
        now = clock.stamp(clock.now())
        status = {"startTime": job.get("status", {}).get("startTime", now), "active": len(pods)}
        if any(pod.get("status", {}).get("phase") == "Succeeded" for pod in pods):
            status = {**status, "active": 0, "succeeded": 1, "completionTime": now}
            for pod in pods:
                self._show(job, pod)
            self._finish(job, status, "Complete", "CompletionsReached", "Reached expected number of succeeded pods")
        elif max(map(restarts, pods)) >= max(1, job["spec"].get("backoffLimit", _BACKOFF_LIMIT)):
            said = next(filter(None, map(_last_message, pods)), "")
            message = f"Job has reached the specified backoff limit{': ' if said else ''}{said}"
            for pod in pods:
                self._pods.delete(job, pod)
            self._finish(job, {**status, "active": 0, "failed": 1}, "Failed", "BackoffLimitExceeded", message)
        else:
            self._store.write_status(Ref.of(job), status)

    def _finish(self, job: Object, status: Object, kind: str, reason: str, message: str) -> None:
        condition = {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": clock.stamp(clock.now()),
        }
        self._store.write_status(Ref.of(job), {**status, "conditions": [condition]})
        self._events.record(job, "Normal" if kind == "Complete" else "Warning", reason, message, "job-controller")


def _annotate(metadata: Object, line: str) -> None:
    metadata["annotations"] = {**(metadata.get("annotations") or {}), PROGRESS: line}


def is_finished(job: Object) -> bool:
    """Whether the Job is complete or has failed."""
    conditions = job.get("status", {}).get("conditions", [])
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


def _last_message(pod: Object) -> str:
    """The last line that a container of the pod left when it ended last."""
    for status in pod.get("status", {}).get("containerStatuses", []):
        terminated = status["state"].get("terminated") or status["lastState"].get("terminated") or {}
        if message := str(terminated.get("message", "")).strip():
            return message.rpartition("\n")[2]
    return ""
