"""Rolling updates: how many engines of each revision there should be now, within surge and unavailability limits.

There is one Deployment for each revision, and only its replica count is decided here; works the same on every cluster.
The arithmetic is that of a Kubernetes rolling update, except that pods which still terminate (drain) count as present:
on a machine without room for another engine, a new one starts only when an old one is really gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RevisionPods:
    """The Deployment of one revision and counts of its pods as they are now."""

    revision: str
    desired: int
    """``spec.replicas`` of its Deployment."""
    active: int
    """Pods that run or start."""
    terminating: int
    """Pods that drain; their Deployment creates others in their place."""
    ready: int
    """Pods that are ready and do not terminate."""

    @property
    def footprint(self) -> int:
        """Pods that exist or are about to be created."""
        return self.terminating + max(self.desired, self.active)

    @property
    def gone(self) -> bool:
        """Whether no pod of the revision exists nor is desired."""
        return self.footprint == 0

    @property
    def available(self) -> int:
        """Ready pods that the Deployment is to keep."""
        return min(self.desired, self.ready)


def replica_counts(
    replicas: int,
    current: RevisionPods,
    others: Sequence[RevisionPods],
    *,
    max_surge: int,
    max_unavailable: int,
    most: int | None = None,
    kept: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """The next replica count of the Deployment of each revision. ``others`` are the earlier revisions, oldest first.

    ``most``: engines of the current revision, and ``kept``: those of an earlier one that stay or come back, while the
    current one is a canary.

    Repeated calls converge to ``replicas`` of the current revision and 0 of the others. A current revision that does
    not become ready stops the rollout with at least ``replicas - max_unavailable`` others left, ready or about to be
    again.
    """
    revisions = (current, *others)
    needed = max(0, replicas - max_unavailable)
    # Pods of the current revision that are not ready may never be: they replace no pod.
    removable = sum(pods.desired for pods in revisions) - needed - (current.desired - current.available)
    spare = sum(pods.available for pods in revisions) - needed
    most = replicas if most is None else min(most, replicas)
    room = replicas + max_surge - sum(pods.footprint for pods in revisions)
    result = {current.revision: _scale_up(most, current, room)}
    room -= max(0, result[current.revision] - current.desired)
    for pods in others:
        # Pods that are not ready go first, as a ReplicaSet chooses the pods to delete, too.
        unready = min(pods.desired - pods.available, max(0, removable))
        removable -= unready
        ready = min(pods.available, max(0, removable), max(0, spare)) if unready == pods.desired - pods.available else 0
        removable -= ready
        spare -= ready
        result[pods.revision] = pods.desired - unready - ready
        least = (kept or {}).get(pods.revision, 0)
        if result[pods.revision] < least:
            result[pods.revision] = max(min(pods.desired, least), _scale_up(least, pods, room))
    return result


def _scale_up(most: int, pods: RevisionPods, room: int) -> int:
    if pods.desired >= most:
        return most
    # Where someone lowered the Deployment by hand, pods that have not been removed yet need no room: they are kept.
    return min(most, max(pods.desired, pods.active) + max(0, room))
