"""How many engines of each revision there should be now, so that a change never costs more capacity than allowed.

One Deployment a revision, and only its size is ever decided here; works the same on every cluster. The arithmetic is
that of a Kubernetes rolling update, except that pods which are still leaving count as present: on a machine without
room for another engine, a new one starts only when an old one is really gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RevisionPods:
    """One revision's Deployment and pods as they are now."""

    revision: str
    wanted: int
    """``spec.replicas`` of its Deployment."""
    staying: int
    """Pods that run or start."""
    leaving: int
    """Pods that finish what they have; their Deployment makes others in their place."""
    ready: int
    """Those that answer and are not leaving."""

    @property
    def footprint(self) -> int:
        """Pods there are or are about to be."""
        return self.leaving + max(self.wanted, self.staying)

    @property
    def gone(self) -> bool:
        """Nothing of it is left, nor wanted."""
        return self.footprint == 0

    @property
    def available(self) -> int:
        """Ready pods that nobody has decided to remove yet."""
        return min(self.wanted, self.ready)


def sizes(
    replicas: int, current: RevisionPods, others: Sequence[RevisionPods], *, max_surge: int, max_unavailable: int
) -> dict[str, int]:
    """The next size of every revision's Deployment. ``others`` oldest first.

    Repeated looks converge: ``replicas`` of the current revision and 0 of the others. A current revision that does not
    become ready stops the change with at least ``replicas - max_unavailable`` others left, ready or about to be again.
    """
    everyone = (current, *others)
    needed = max(0, replicas - max_unavailable)
    # Pods of the current revision that do not answer may never do: they replace nobody.
    removable = sum(pods.wanted for pods in everyone) - needed - (current.wanted - current.available)
    spare = sum(pods.available for pods in everyone) - needed
    result = {current.revision: _grow(replicas, current, others, max_surge)}
    for pods in others:
        # Those that do not answer go first, as a ReplicaSet chooses its victims too.
        idle = min(pods.wanted - pods.available, max(0, removable))
        removable -= idle
        answering = min(pods.available, max(0, removable), max(0, spare)) if idle == pods.wanted - pods.available else 0
        removable -= answering
        spare -= answering
        result[pods.revision] = pods.wanted - idle - answering
    return result


def _grow(replicas: int, current: RevisionPods, others: Sequence[RevisionPods], max_surge: int) -> int:
    if current.wanted >= replicas:
        return replicas
    room = replicas + max_surge - sum(pods.footprint for pods in (current, *others))
    # Where someone lowered the Deployment by hand, pods that have not been removed yet need no room: they are kept.
    return min(replicas, max(current.wanted, current.staying) + max(0, room))
