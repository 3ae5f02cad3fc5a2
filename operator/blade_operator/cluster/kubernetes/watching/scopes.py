"""Which kinds are watched where, and how far each of them is: readiness is per namespace and kind."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from blade_operator import metrics
from blade_operator.cluster.kubernetes.kinds import WATCHED, Kind

_log = logging.getLogger(__name__)

NOT_INSTALLED = "this cluster does not have it"
"""Why a foreign kind is skipped where there is none."""


@dataclass(frozen=True, slots=True)
class Scope:
    """One kind in one namespace, or in all of them."""

    kind: Kind
    namespace: str | None

    def __str__(self) -> str:
        return f"{self.kind.plural} in {self.namespace}" if self.namespace else self.kind.plural

    @property
    def path(self) -> str:
        """Where the API server lists it."""
        return self.kind.path(self.namespace)


class Scopes:
    """All scopes of this process. ``namespaces``: those to watch; empty for the whole cluster.

    A namespace with a kind that cannot be listed is skipped whole: to reconcile a service without seeing all of its
    children would be guesswork. In the whole cluster only the kind is skipped, and the operator is not ready until it
    has been seen once. An optional kind is skipped alone, in all namespaces (kopf watches a kind in all of them), and
    nothing waits for it.
    """

    def __init__(self, namespaces: Sequence[str] = ()) -> None:
        self.namespaces = tuple(namespaces)
        places: Sequence[str | None] = self.namespaces or (None,)
        self.all = [Scope(kind, place) for kind in WATCHED for place in places]
        self._synced: set[Scope] = set()
        self._skipped: dict[Scope, str] = {}
        self._incomplete: set[str] = set()
        self._changed = asyncio.Condition()
        self._listeners: list[Callable[[str], None]] = []

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with every namespace that had been skipped and is in the cache again, completely."""
        self._listeners.append(listener)

    def is_incomplete(self, namespace: str) -> bool:
        """Whether ``namespace`` was skipped, and not everything in it has been seen since."""
        return namespace in self._incomplete

    @property
    def unsynced(self) -> list[str]:
        """What has yet to be listed for the first time, for people."""
        return [str(scope) for scope in self.all if scope not in self._synced and not self._waits_not(scope)]

    def is_skipped(self, scope: Scope) -> bool:
        """Whether ``scope``, or the namespace it is in, cannot be listed now."""
        return scope in self._skipped or self._waits_not(scope)

    def has(self, kind: Kind) -> bool:
        """Whether all there was of ``kind`` has been seen, and it can be listed still."""
        mine = [scope for scope in self.all if scope.kind == kind and not self._leaves_out(scope)]
        return kind not in self._absent and all(scope in self._synced for scope in mine)

    @property
    def skipped(self) -> dict[str, str]:
        """What cannot be listed now, with the reason."""
        return {str(scope): reason for scope, reason in self._skipped.items()}

    @property
    def watched(self) -> list[Scope]:
        """Everything but what is skipped."""
        return [scope for scope in self.all if not self.is_skipped(scope)]

    @property
    def served_namespaces(self) -> list[str]:
        """The namespaces that are not skipped; empty in the whole cluster."""
        return [namespace for namespace in self.namespaces if namespace not in self._skipped_namespaces]

    async def wait_synced(self) -> None:
        """Until every scope has been listed or left out, and there is one that was not left out."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._synced and not self.unsynced)

    async def mark_synced(self, scope: Scope) -> None:
        """All there was in ``scope`` is in the informer cache."""
        if self.is_skipped(scope):
            return  # it may be incomplete by the time that its namespace is watched again
        async with self._changed:
            self._synced.add(scope)
            self._changed.notify_all()
        namespace = scope.namespace
        if namespace not in self._incomplete or namespace in self._skipped_namespaces:
            return
        mine = [each for each in self.all if each.namespace == namespace]
        if all(each in self._synced or self._waits_not(each) for each in mine):
            self._incomplete.discard(namespace)
            for listener in self._listeners:
                listener(namespace)

    async def skip(self, refused: dict[Scope, str]) -> set[str]:
        """``refused`` is all that cannot be listed now, and why. Returns the namespaces that are skipped since now."""
        before = self._skipped_namespaces
        for scope, reason in refused.items():
            if scope not in self._skipped and reason != NOT_INSTALLED:
                _log.warning("%s cannot be watched: %s; %s", scope, reason, _consequence(scope))
        for scope in self._skipped:
            if scope not in refused:
                _log.info("%s can be watched now", scope)
        async with self._changed:
            self._skipped = dict(refused)
            new = self._skipped_namespaces - before
            self._incomplete |= new
            self._synced -= {scope for scope in self.all if scope.namespace in new}
            self._changed.notify_all()
        metrics.SKIPPED.clear()
        for scope in (scope for scope, reason in refused.items() if reason != NOT_INSTALLED):
            metrics.SKIPPED.labels(scope.namespace or "", scope.kind.name).set(1)
        return new

    @property
    def _skipped_namespaces(self) -> set[str]:
        return {scope.namespace for scope in self._skipped if scope.namespace is not None and not scope.kind.optional}

    def _waits_not(self, scope: Scope) -> bool:
        """Whether nothing waits for ``scope`` to be listed."""
        return self._leaves_out(scope) or scope.kind in self._absent

    @property
    def _absent(self) -> set[Kind]:
        """Optional kinds that are skipped in all namespaces."""
        return {each.kind for each in self._skipped if each.kind.optional and not self._leaves_out(each)}

    def _leaves_out(self, scope: Scope) -> bool:
        return scope.namespace in self._skipped_namespaces


def _consequence(scope: Scope) -> str:
    if scope.kind.optional or not scope.namespace:
        return "it is skipped"
    return f"namespace {scope.namespace} is skipped"


def by_path(scopes: Iterable[Scope]) -> dict[str, Scope]:
    """Scopes by the path the API server lists them at."""
    return {scope.path: scope for scope in scopes}
