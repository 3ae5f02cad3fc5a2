"""Follows one kind: list it, then watch what changes, for ever, whatever happens to the connection.

A watch that ends goes on where it stopped. When the server no longer has that point in its history (410), the list is
taken again and compared, so that objects deleted meanwhile are noticed too.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import msgspec

from blade_operator import metrics
from blade_operator.cluster.kubernetes.api import Api, ApiError
from blade_operator.cluster.kubernetes.kinds import Kind
from blade_operator.cluster.kubernetes.records import Records
from blade_operator.objects import Object, Ref

_log = logging.getLogger(__name__)

PAGE = 500
"""Objects per page of a list: the memory it takes at a time."""
WATCH_SECONDS = (45, 65)
"""How long the server keeps one watch open: shorter than `api.SILENCE`, since of a kind that never changes there are no
bookmarks either. Chosen anew each time, so that they do not all end together."""
PAUSE_FIRST = 0.5
PAUSE_MOST = 30.0


class _Expired(Exception):
    """The server cannot go on from where the watch was: list again."""


class Reflector:
    """Keeps the objects of one kind, in one namespace or in all, in `Records`."""

    def __init__(self, api: Api, kind: Kind, namespace: str | None, records: Records) -> None:
        self._api = api
        self._kind = kind
        self._namespace = namespace
        self._records = records
        self._pause = PAUSE_FIRST
        self.synced = asyncio.Event()
        """Set once everything there was has been seen."""

    def __str__(self) -> str:
        return f"{self._kind.plural} in {self._namespace}" if self._namespace else self._kind.plural

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                version = await self._list()
                self.synced.set()
                while True:
                    version = await self._watch(version)
            except _Expired as error:
                _log.info("following %s: %s; listing again", self, error)
                metrics.WATCH_RESTARTS.labels(self._kind.name).inc()
                await asyncio.sleep(random.uniform(0.1, 1))
            except ApiError as error:
                await self._wait(error)

    async def _list(self) -> str:
        """Take everything; returns the version it had."""
        seen: set[Ref] = set()
        page: Any = {}
        more = ""
        while True:
            params = {"limit": str(PAGE), **({"continue": more} if more else {}), **self._selector}
            page = await self._api.get(self._path, params, kind=self._kind.name)
            for item in page["items"]:
                obj = self._named(item)
                seen.add(Ref.of(obj))
                self._records.put(obj)
            more = page["metadata"].get("continue", "")
            if not more:
                break
        version = str(page["metadata"]["resourceVersion"])
        self._records.keep_only(self._kind.name, self._namespace, seen, int(version))
        return version

    async def _watch(self, version: str) -> str:
        """Follow changes since ``version`` until the server has had enough; returns the version reached."""
        while True:
            params = {
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),
                **self._selector,
            }
            events = 0
            try:
                async for line in self._api.lines(self._path, params, kind=self._kind.name):
                    version = self._take(msgspec.json.decode(line))
                    events += 1
                    self._pause = PAUSE_FIRST
            except (ApiError, msgspec.DecodeError) as error:
                if isinstance(error, ApiError) and error.status == 410:
                    raise _Expired(str(error)) from error
                await self._wait(error)
            else:
                if not events:
                    await asyncio.sleep(1)  # a server that ends every watch at once
                return version

    def _take(self, event: Any) -> str:
        """Keep what an event says; returns its version."""
        kind, obj = event["type"], event["object"]
        if kind == "ERROR":
            raise _Expired(obj.get("message", "the watch failed"))
        version = str(obj["metadata"]["resourceVersion"])
        if kind == "DELETED":
            self._records.remove(Ref.of(self._named(obj)), int(version))
        elif kind != "BOOKMARK":
            self._records.put(self._named(obj))
        return version

    def _named(self, obj: Object) -> Object:
        """Items of a list do not say what they are."""
        return {**obj, "kind": self._kind.name, "apiVersion": self._kind.api_version}

    async def _wait(self, error: Exception) -> None:
        """Later and later while it fails, and as long as the server asks."""
        metrics.WATCH_RESTARTS.labels(self._kind.name).inc()
        asked = getattr(error, "retry_after", None) or 0.0
        seconds = max(asked, self._pause * random.uniform(0.8, 1.2))
        self._pause = min(PAUSE_MOST, 2 * self._pause)
        _log.warning("following %s: %s; again in %.1f s", self, error, seconds)
        await asyncio.sleep(seconds)

    @property
    def _path(self) -> str:
        return self._kind.path(self._namespace)

    @property
    def _selector(self) -> dict[str, str]:
        return {"labelSelector": self._kind.selector} if self._kind.selector else {}
