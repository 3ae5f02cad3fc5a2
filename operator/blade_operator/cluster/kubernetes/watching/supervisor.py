"""The supervisor runs kopf again whenever it ends: after an ``ERROR`` in a watch, an HTTP 410, a lasting 403.

Everything else goes on meanwhile: the informer cache, the change queue and the lease are not kopf's. Before each run it
finds out what can be listed at all, so that a namespace which was deleted or is forbidden never stops the others.
"""

from __future__ import annotations

import asyncio
import logging
import time

from blade_operator import backoff, metrics
from blade_operator.cluster.kubernetes.api import METADATA, Api, ApiError
from blade_operator.cluster.kubernetes.informer_cache import InformerCache
from blade_operator.cluster.kubernetes.watching.event_source import EventSource
from blade_operator.cluster.kubernetes.watching.scopes import NOT_INSTALLED, Scope, Scopes

_log = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0
"""Seconds between two runs at most."""
STEADY = 60.0
"""Seconds of a run after which its end counts as the first failure again."""
CHECK_SECONDS = 5.0
"""Seconds for the request that finds out whether a scope can be listed."""
CHECKS_AT_ONCE = 8
STALLED = 120.0
"""Seconds in which kopf has to list one more scope, until it has listed all: one of which discovery did not know
when the run began, as of a CRD that was just installed, it never lists."""
REFUSALS = (403, 404)


class Supervisor:
    """Keeps ``source`` running on what can be watched of ``scopes``."""

    def __init__(self, api: Api, cache: InformerCache, scopes: Scopes, source: EventSource) -> None:
        self._api = api
        self._cache = cache
        self._scopes = scopes
        self._source = source
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)

    async def run(self) -> None:
        """Run until cancelled, or until the source is closed."""
        failures = 0
        while not self._source.is_closing:
            await self._find_refused()
            began = time.monotonic()
            recheck = asyncio.create_task(self._recheck())
            progress = asyncio.create_task(self._watch_progress())
            try:
                await self._source.run(self._scopes.watched, self._scopes.served_namespaces)
                if recheck.done() or self._source.is_closing:
                    continue
                reason = self._source.stop_reason or "it ended"
            except Exception as error:  # of kopf and of aiohttp: they have no common base
                reason = str(error) or repr(error)
                _log.debug("kopf ended", exc_info=True)
            finally:
                recheck.cancel()
                progress.cancel()
            failures = 0 if time.monotonic() - began > STEADY else failures
            seconds = min(LONGEST_PAUSE, backoff.delay(failures))
            failures += 1
            metrics.EVENT_SOURCE_RESTARTS.inc()
            _log.warning("watching stopped: %s; again in %.1f s", reason, seconds)
            await asyncio.sleep(seconds)

    async def _find_refused(self) -> None:
        reasons = await asyncio.gather(*map(self._refusal, self._scopes.all))
        refused = {}
        for scope, reason in zip(self._scopes.all, reasons, strict=True):
            if reason is None:  # the server does not say: as before
                reason = self._scopes.skipped.get(str(scope))
            if reason:
                refused[scope] = reason
        for namespace in await self._scopes.skip(refused):
            self._cache.forget_namespace(namespace)
        for scope in self._scopes.all:
            if scope.kind.optional and self._scopes.is_skipped(scope):
                for ref in self._cache.refs(scope.kind.name, scope.namespace):
                    self._cache.forget(ref)

    async def _recheck(self) -> None:
        """Ends the run, and itself, once something that is skipped can be listed."""
        attempts = 0
        while True:
            await asyncio.sleep(backoff.delay(attempts) if self._scopes.skipped else LONGEST_PAUSE)
            attempts += 1
            refused = [scope for scope in self._scopes.all if str(scope) in self._scopes.skipped]
            still = {_unit(scope) for scope in refused if await self._refusal(scope) != ""}
            if any(_unit(scope) not in still for scope in refused):
                self._source.stop()
                return

    async def _watch_progress(self) -> None:
        """Ends the run, and itself, when kopf goes on without ever listing what it should watch."""
        unlisted = len(self._source.unlisted)
        while self._source.unlisted:
            await asyncio.sleep(STALLED)
            if (left := len(self._source.unlisted)) and left == unlisted:
                self._source.stop(f"{', '.join(sorted(map(str, self._source.unlisted)))} not listed in {STALLED:g} s")
                return
            unlisted = left

    async def _refusal(self, scope: Scope) -> str | None:
        """Why ``scope`` cannot be listed and watched; empty when it can, None when the server does not say.

        That it cannot be watched shows when kopf tries to: only then is it checked, for another request each.
        """
        kind, narrowed = scope.kind.name, scope.kind.list_params
        async with self._checks:
            try:
                await self._api.read(
                    scope.path, {"limit": "1", **narrowed}, kind=kind, accept=METADATA, timeout=CHECK_SECONDS
                )
                if scope in self._source.unwatchable:
                    await self._api.check(scope.path, {"watch": "1", **narrowed}, kind=kind, timeout=CHECK_SECONDS)
                    self._source.unwatchable.discard(scope)
            except ApiError as error:
                if scope.kind.foreign and error.status == 404:
                    return NOT_INSTALLED
                return str(error) if error.status in REFUSALS else None
        return ""


def _unit(scope: Scope) -> str:
    """What is skipped together: a namespace, or a kind in the whole cluster; an optional kind alone."""
    return str(scope) if scope.kind.optional else scope.namespace or str(scope)
