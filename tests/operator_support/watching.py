"""A `KubernetesCluster` whose informer cache kopf fills from a `FakeApiServer`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from blade_operator.cluster.kubernetes.api import Api
from blade_operator.cluster.kubernetes.cluster import KubernetesCluster
from blade_operator.cluster.kubernetes.fence import WriteFence
from blade_operator.cluster.kubernetes.watching.event_source import EventSource
from blade_operator.cluster.kubernetes.watching.supervisor import Supervisor
from blade_operator.cluster.kubernetes.watching.sweep import Sweeper
from blade_operator.model.objects import Key, Object, Ref
from operator_support.apiserver import FakeApiServer
from operator_support.local import until

KEY = Key("team", "qwen")
FAST = (0.01, 0.02, 0.05)
"""Seconds between the attempts of one request of kopf's."""


class Watching:
    """Everything that keeps one informer cache up to date. No leader: nothing can be written."""

    def __init__(self, server: FakeApiServer, api: Api, namespaces: Sequence[str], backoffs: Sequence[float]) -> None:
        self.server = server
        self.cluster = KubernetesCluster(api, namespaces)
        self.cache, self.scopes = self.cluster.cache, self.cluster.scopes
        self.notified: list[Key] = []
        self.cache.subscribe(self.notified.append)
        self.sweeper = Sweeper(api, self.cache, self.scopes)
        self.wrong = ""
        self.cleaned_up: list[bool] = []
        self.source = EventSource(
            server.configuration, self.cache, self.sweeper.request, lambda: self.wrong, self._clean_up, backoffs
        )
        self.sweeper.on_rewritten = self.source.stop
        self.supervisor = Supervisor(api, self.cache, self.scopes, self.source)

    async def _clean_up(self) -> None:
        self.cleaned_up.append(True)

    async def synced(self) -> None:
        await until(lambda: not self.scopes.unsynced)

    def data(self, key: Key = KEY) -> dict[str, dict[str, Any]]:
        """The ConfigMaps of a service in the cache, by name."""
        return {obj["metadata"]["name"]: obj["data"] for obj in self.cache.children(key).get("ConfigMap", [])}

    def known(self, kind: str, name: str, namespace: str = "team") -> Object | None:
        cached = self.cache.get(Ref(kind, namespace, name))
        return cached.unpack() if cached is not None else None


@asynccontextmanager
async def watching(
    server: FakeApiServer, *namespaces: str, backoffs: Sequence[float] = FAST
) -> AsyncIterator[Watching]:
    """Kept up to date meanwhile."""
    async with Api(server.configuration, WriteFence()) as api:
        found = Watching(server, api, namespaces, backoffs)
        tasks = [asyncio.create_task(found.supervisor.run()), asyncio.create_task(found.sweeper.run())]
        try:
            yield found
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            found.source.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(tasks[0]), 3)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
