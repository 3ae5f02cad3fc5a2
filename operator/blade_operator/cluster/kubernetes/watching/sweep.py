"""The sweep compares the informer cache with a list of metadata, and removes or fetches again what differs.

It heals what watches cannot: an object deleted while a watch was broken (kopf lists again after a 410 and reports what
is there, not what is gone), and a cache that is newer than the server, whose etcd was restored from a backup. It runs
for a kind whenever kopf has listed it, and every ten minutes. The first one after the start also shows that all
there was has arrived.

What proves that history was rewritten: a list that is read now, from a quorum, cannot be older than a version that was
seen before it was requested, nor have an older state of an object than one seen up to the list's own version.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass

import msgspec

from blade_operator import backoff, metrics
from blade_operator.cluster.kubernetes.api import METADATA, Api, ApiError
from blade_operator.cluster.kubernetes.informer_cache import InformerCache
from blade_operator.cluster.kubernetes.watching.scopes import Scope, Scopes
from blade_operator.model.objects import Object, Ref
from blade_protocol.labels import NAME, OWN_KINDS

_log = logging.getLogger(__name__)

PERIOD = 600.0
"""Seconds between two sweeps of a scope, with jitter."""
PAGE = 500
"""Entries per page of a list of metadata."""
OBJECTS = 100
"""Whole objects per page."""
ONE_BY_ONE = 20
"""Objects up to which each is fetched by its name."""
PATIENCE = 5.0
"""Seconds that an event may be late: while what is missing gets less, it is not late."""
POLL = 0.05
AT_ONCE = 4
_ROUNDS = 3


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(default="", name="continue")


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    namespace: str
    resource_version: str
    labels: dict[str, str] | None = None


class _Item(msgspec.Struct):
    metadata: _Metadata


class _Page(msgspec.Struct):
    metadata: _ListMetadata
    items: list[_Item] | None
    """None when there are none: of metadata the server says null."""


class _Objects(msgspec.Struct):
    metadata: _ListMetadata
    items: list[Object] | None


_decode_page = msgspec.json.Decoder(_Page).decode
_decode_objects = msgspec.json.Decoder(_Objects).decode


@dataclass(frozen=True, slots=True)
class _List:
    """A list of metadata."""

    version: int
    versions: Mapping[Ref, int]


class Sweeper:
    """Sweeps the scopes of ``scopes``, each in its own time."""

    def __init__(self, api: Api, cache: InformerCache, scopes: Scopes, period: float = PERIOD) -> None:
        self._api = api
        self._cache = cache
        self._scopes = scopes
        self._period = period
        self._requested = {scope: asyncio.Event() for scope in scopes.all}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self.on_rewritten: Callable[[str], None] = lambda reason: None
        """Called with the reason when the server has gone back behind versions that were seen."""

    def request(self, scope: Scope) -> None:
        """Sweep ``scope`` now."""
        self._requested[scope].set()

    async def run(self) -> None:
        """Run until cancelled. A scope is not swept before the first request."""
        async with asyncio.TaskGroup() as group:
            for scope in self._scopes.all:
                group.create_task(self._keep_swept(scope))

    async def _keep_swept(self, scope: Scope) -> None:
        requested, failures = self._requested[scope], 0
        await requested.wait()
        while True:
            requested.clear()
            if self._scopes.is_skipped(scope):  # until kopf lists it again
                await requested.wait()
                continue
            try:
                async with self._slots:
                    await self.sweep(scope)
                failures, seconds = 0, self._period * random.uniform(0.9, 1.1)
            except ApiError as error:
                seconds = min(self._period, max(backoff.delay(failures), error.retry_after or 0.0))
                failures += 1
                _log.warning("the sweep of %s failed: %s; again in %.1f s", scope, error, seconds)
            try:
                await asyncio.wait_for(requested.wait(), seconds)
            except TimeoutError:
                pass

    async def sweep(self, scope: Scope) -> None:
        """Compare and correct ``scope``, then mark it as synced. Raises `ApiError`."""
        for _ in range(_ROUNDS):  # once more after a correction: events may have come while objects were fetched
            if not await self._correct(scope):
                break
        await self._scopes.mark_synced(scope)

    async def _correct(self, scope: Scope) -> int:
        """Returns how many objects differed."""
        kind = scope.kind.name
        newest = self._cache.newest(kind, scope.namespace)
        listed = await self._list(scope)
        rewritten = self._rewritten(scope, listed, newest)
        if listed.version < newest:
            self._cache.forget_deleted(kind, scope.namespace, listed.version)
        for ref in rewritten - listed.versions.keys():
            self._cache.forget(ref)
        if rewritten or listed.version < newest:
            self.on_rewritten(f"the server's history of {scope} was rewritten")  # its watches wait for old versions
        before = set(self._cache.refs(kind, scope.namespace))
        self._cache.keep_only(kind, scope.namespace, listed.versions, listed.version)
        removed = len(before) - len(self._cache.refs(kind, scope.namespace))
        missed = await self._missed({ref: v for ref, v in listed.versions.items() if ref not in rewritten})
        replaced = rewritten & listed.versions.keys()
        async for obj in self._fetch(scope, replaced | missed):
            if Ref.of(obj) in replaced:
                self._cache.replace(obj)
            else:
                self._cache.put(obj)
        differing = removed + len(rewritten | missed)
        if differing:
            metrics.SWEEP_CORRECTIONS.labels(kind).inc(differing)
            words = "%d %s differed from the server's and were corrected: %d had been deleted, %d were older, %d newer"
            _log.warning(words, differing, scope, removed, len(missed), len(rewritten))
        return differing

    def _rewritten(self, scope: Scope, listed: _List, newest: int) -> set[Ref]:
        """Objects whose known version is from a history that the server does not have any more."""
        refs = {*listed.versions, *self._cache.refs(scope.kind.name, scope.namespace)}
        known = {ref: version for ref in refs if (version := self._cache.version(ref)) is not None}
        if listed.version < newest:
            return {ref for ref, version in known.items() if version != listed.versions.get(ref)}
        return {ref for ref, version in known.items() if listed.versions.get(ref, version) < version <= listed.version}

    async def _missed(self, versions: Mapping[Ref, int]) -> set[Ref]:
        """Objects of which the cache has an older state or none, although their events have had their time."""
        behind, patience = set(versions), PATIENCE
        while True:
            late = {ref for ref in behind if (self._cache.version(ref) or 0) < versions[ref]}
            if not late or patience <= 0:
                return late
            patience = PATIENCE if len(late) < len(behind) else patience - POLL
            behind = late
            await asyncio.sleep(POLL)

    async def _list(self, scope: Scope) -> _List:
        versions: dict[Ref, int] = {}
        kind, more, version = scope.kind.name, "", 0
        while True:
            params = {"limit": str(PAGE), **({"continue": more} if more else {}), **scope.kind.list_params}
            content = await self._api.read(scope.path, params, kind=kind, accept=METADATA)
            page = _decoded(_decode_page, content)
            version = version or int(page.metadata.resource_version)
            for item in page.items or ():
                metadata = item.metadata
                if kind in OWN_KINDS or (metadata.labels or {}).get(NAME):  # anything else belongs to no service
                    versions[Ref(kind, metadata.namespace, metadata.name)] = int(metadata.resource_version)
            more = page.metadata.continue_
            if not more:
                return _List(version, versions)

    async def _fetch(self, scope: Scope, refs: Collection[Ref]) -> AsyncIterator[Object]:
        """Those of ``refs`` that there are now. They are listed by name: that needs no further right."""
        if len(refs) > ONE_BY_ONE:
            async for obj in self._objects(scope, scope.path, {}):
                if Ref.of(obj) in refs:
                    yield obj
            return
        for ref in refs:
            params = {"fieldSelector": f"metadata.name={ref.name}"}
            async for obj in self._objects(scope, scope.kind.path(ref.namespace), params):
                yield obj

    async def _objects(self, scope: Scope, path: str, params: dict[str, str]) -> AsyncIterator[Object]:
        """Whole objects, a page of them in memory at a time."""
        kind, more = scope.kind, ""
        while True:
            page_params = {"limit": str(OBJECTS), **({"continue": more} if more else {}), **kind.list_params, **params}
            page = _decoded(_decode_objects, await self._api.read(path, page_params, kind=kind.name))
            for obj in page.items or ():
                yield {**obj, "kind": kind.name, "apiVersion": kind.api_version}
            more = page.metadata.continue_
            if not more:
                return


def _decoded(decode, content: bytes):  # type: ignore[no-untyped-def]
    try:
        return decode(content)
    except msgspec.DecodeError as error:
        raise ApiError(0, "Malformed", f"the API server's list cannot be read: {error}") from error
