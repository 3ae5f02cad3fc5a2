"""The cluster as the operator needs it: one small interface, two implementations.

``cluster.local`` is this machine: it keeps the objects as files and runs pods as processes. ``cluster.kubernetes``
speaks to a real API server. Reconcile never sees either; ``watch`` carries its plans out through this interface.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from blade_operator.objects import Key, Object, Ref
from blade_operator.observed import Observed
from blade_operator.plan import EventRecord


class Rejected(Exception):
    """The cluster refuses an object as it is, in the words of this exception; the rest of a plan goes on."""


class Cluster(Protocol):
    """All methods are safe to repeat."""

    def changes(self) -> AsyncIterator[Key]:
        """Names of services of which the object or any child changed; first every service there is."""

    async def observe(self, key: Key) -> Observed | None:
        """The service and its children now (``engines`` left empty), or None when it is gone."""

    async def apply(self, obj: Object) -> None:
        """Server-side apply with this operator as field manager.

        Raises:
            Rejected: the object as it is will not be accepted: invalid, or against a quota or a policy.
        """

    async def delete(self, ref: Ref) -> None:
        """Delete; a missing object is fine."""

    async def write_status(self, key: Key, status: Object) -> None:
        """Replace the service's status."""

    async def emit(self, key: Key, event: EventRecord) -> None:
        """Record a Kubernetes Event about the service."""
