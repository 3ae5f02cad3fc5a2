"""The HTTP session that kopf is given: the pool of the ``kubernetes`` package, with a middleware of ours.

The middleware knows what each request is for: it authenticates it with the credentials of that moment, counts it, and
sees that a kind has been listed whole, also when the list was empty, which no event says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

import aiohttp
import kopf
from kubernetes.aio import client

from blade_operator import metrics
from blade_operator.cluster.kubernetes.api import ConnectionPool, count_request, credentials
from blade_operator.cluster.kubernetes.watching import kopf_settings
from blade_operator.cluster.kubernetes.watching.scopes import Scope, by_path

FORBIDDEN = 403


class KopfSession:
    """The requests of one run of kopf.

    Args:
        listed: called with each scope that has been listed whole, every time, in kopf's event loop.
        forbidden: called with each scope that may not be watched, though it was listed.
    """

    def __init__(
        self,
        configuration: client.Configuration,
        scopes: Sequence[Scope],
        listed: Callable[[Scope], None],
        forbidden: Callable[[Scope], None],
    ) -> None:
        self._configuration = configuration
        self._scopes = by_path(scopes)
        self._listed = listed
        self._forbidden = forbidden
        self._listing: set[Scope] = set()
        self._known: set[Scope] = set()
        self._watched_at: dict[Scope, float] = {}
        self._root = urlsplit(configuration.host).path.rstrip("/")
        self._pool = ConnectionPool(configuration, self._send)
        self._given = False

    def login(self) -> kopf.AiohttpSession | None:
        """The session for kopf; None when it wants another, because the server does not accept the credentials.

        kopf ends then. Each request reads the credentials anew, so a later run may succeed.
        """
        if self._given:
            return None
        self._given = True
        return kopf.AiohttpSession(server=self._configuration.host, aiohttp_session=self._pool.pool_manager)

    async def close(self) -> None:
        """Close the connections; kopf has done so if it logged in."""
        await self._pool.close()

    async def _send(self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        request.headers.update(await credentials(self._configuration))
        scope = self._scopes.get(request.url.path.removeprefix(self._root))
        if scope is None:
            return await send(request)
        verb = "watch" if "watch" in request.url.query else "list"
        if verb == "watch":
            await self._before_watch(scope)
        else:
            self._listing.add(scope)
        try:
            response = await send(request)
        except (aiohttp.ClientError, OSError, TimeoutError):
            count_request(verb, scope.kind.name, 0)
            raise
        count_request(verb, scope.kind.name, response.status)
        if verb == "watch" and response.status == FORBIDDEN:
            self._forbidden(scope)
        return response

    async def _before_watch(self, scope: Scope) -> None:
        if scope in self._listing:
            self._listing.discard(scope)
            if scope in self._known:
                metrics.WATCH_RESTARTS.labels(scope.kind.name).inc()
            self._known.add(scope)
            self._listed(scope)
        elif scope in self._watched_at:
            await asyncio.sleep(self._watched_at[scope] + kopf_settings.WATCH_AT_MOST_EVERY - time.monotonic())
        self._watched_at[scope] = time.monotonic()
