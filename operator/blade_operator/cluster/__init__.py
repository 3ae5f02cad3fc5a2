"""The cluster as the operator needs it: one small interface, two implementations.

``cluster.local`` is this machine: it keeps the objects as files and runs pods as processes. ``cluster.kubernetes``
talks to a real API server. Reconcile never sees either; the controller executes its plans through this interface.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from blade_operator.model.objects import Key, Object, Ref
from blade_operator.model.observed import Observed
from blade_operator.model.plan import EventRecord, Prune

MOST_ADAPTERS: Final = 1000
"""LoRAAdapters of a namespace that are looked at: nobody can make a reconcile slow with more."""


class Rejected(Exception):
    """The cluster rejects an object as it is, for the reason in this exception; the rest of the plan goes on."""


class Cluster(Protocol):
    """Reads and writes the objects of one cluster. Every method is safe to repeat."""

    def changes(self) -> AsyncIterator[Key]:
        """Yields the key of each service whose object or any child changed; first the key of every existing service."""

    async def observe(self, key: Key) -> Observed | None:
        """The service and its children as they are now (without ``engines``), or None when it does not exist."""

    async def apply(self, obj: Object) -> None:
        """Server-side apply with this operator as field manager. A pod that is gone stays gone.

        Raises:
            Rejected: the object will not be accepted as it is: it is invalid, or violates a quota or a policy.
        """

    async def replace(self, obj: Object) -> None:
        """Make the object this one, whatever it is now.

        Raises:
            Rejected: the object will not be accepted as it is, or may not be replaced.
        """

    async def prune(self, prune: Prune) -> None:
        """Remove items that somebody added to lists of an object; where it has changed since, nothing happens.

        Raises:
            Rejected: the object will not be accepted without them.
        """

    async def delete(self, ref: Ref) -> None:
        """Delete the object; a missing one is no error."""

    async def claim(self, key: Key, before: Object, status: Object) -> bool:
        """Replace the service's status ``before``; False, and nothing is written, where it is another one by now."""

    async def write_status(self, key: Key, status: Object) -> None:
        """Replace the service's status."""

    def lora_adapters(self, namespace: str) -> tuple[Object, ...]:
        """The LoRAAdapters of a namespace, at most :data:`MOST_ADAPTERS`, by name."""

    async def update_adapter_status(self, ref: Ref, change: Callable[[Object], Object]) -> None:
        """Make the status of a LoRAAdapter what ``change`` makes of the object; where it is gone, nothing happens."""

    async def emit(self, key: Key, event: EventRecord) -> None:
        """Record a Kubernetes Event about the service."""
