"""Rolling updates: how many engines of each revision there should be now, within surge and unavailability limits.

There is one Deployment for each revision, and only its replica count is decided here; works the same on every cluster.
The arithmetic is that of a Kubernetes rolling update, except that pods which still terminate (drain) count as present:
on a machine without room for another engine, a new one starts only when an old one is really gone.

While a change is held (paused, or outside the maintenance window), no replacement begins: `held_counts`.
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


def held_counts(
    replicas: int, current: RevisionPods, others: Sequence[RevisionPods], *, max_surge: int, stable: str = ""
) -> dict[str, int]:
    """The next replica counts while the change to the ``current`` revision is held; ``stable``: proven to work.

    Engines are scaled to ``replicas``, and no replacement begins. One that has begun ends: the engine that starts is
    waited for within the surge, and then the one it replaces leaves. Scaling down keeps the mix of revisions: it takes
    from the revision with the most engines.
    """
    revisions = (current, *others)
    result = {pods.revision: pods.desired for pods in revisions}
    total = sum(result.values())
    if total < replicas:
        base = base_revision(current, others, stable)
        room = replicas + max_surge - sum(pods.footprint for pods in revisions)
        grown = max(base.desired, base.active) + max(0, room)
        result[base.revision] = max(base.desired, min(base.desired + replicas - total, grown))
        return result
    ready = {pods.revision: pods.available for pods in revisions}
    both = current.desired > 0 and any(pods.desired for pods in others)
    for _ in range(total - replicas - (max_surge if both else 0)):
        unready = next((name for name, count in result.items() if count > ready[name]), None)
        chosen = unready or max(result, key=lambda name: result[name])  # of equals the first: the current one
        result[chosen] -= 1
        ready[chosen] = min(ready[chosen], result[chosen])
    # What is left beyond `replicas` replaces an earlier engine each, as soon as it is ready.
    name = current.revision
    surplus = sum(result.values()) - replicas - (result[name] - ready[name])
    spare = sum(ready.values()) - replicas
    for pods in others:
        unready_pods = min(result[pods.revision] - ready[pods.revision], max(0, surplus))
        leaving = min(ready[pods.revision], max(0, surplus - unready_pods), max(0, spare))
        surplus -= unready_pods + leaving
        spare -= leaving
        result[pods.revision] -= unready_pods + leaving
    return result


def base_revision(current: RevisionPods, others: Sequence[RevisionPods], stable: str = "") -> RevisionPods:
    """The revision of engines that are added while a change is held: an earlier one, if any is there.

    With several it is the one that is known to work, else the one with the most ready engines, of these the newest.
    Where all have been scaled to zero it is the newest, unless the current one has run already.
    """
    running = [pods for pods in others if pods.desired]
    if running:
        return max(reversed(running), key=lambda pods: (pods.revision == stable, pods.available))
    if current.desired or current.active or not others:
        return current
    return next((pods for pods in others if pods.revision == stable), others[-1])


def _scale_up(most: int, pods: RevisionPods, room: int) -> int:
    if pods.desired >= most:
        return most
    # Where someone lowered the Deployment by hand, pods that have not been removed yet need no room: they are kept.
    return min(most, max(pods.desired, pods.active) + max(0, room))
