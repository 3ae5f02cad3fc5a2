"""The open pages: how many there may be, and what each gets.

Nothing is kept for a page that reads too slowly: it misses updates, and gets everything anew once it reads again; one
that does not for long is closed.
"""

import asyncio
import time

from blade_router.http.client import Client
from blade_router.http.errors import ClientGone, Refused
from blade_router.ui.scope import Scope

MOST = 200
"""Viewers of a process."""
MOST_OF_KEY = 50
"""Those with the same key: one key cannot take the places of all others."""
STALLED_SECONDS = 15.0
"""Seconds without reading after which a viewer is closed."""


class Viewer:
    """One open page; ``Client.attach`` takes it."""

    def __init__(self, client: Client, scope: Scope) -> None:
        self.scope = scope
        self.closed = asyncio.get_running_loop().create_future()
        """Done when it gets nothing more."""
        self._client = client
        self._behind = True
        """It has missed an update, or the first snapshot."""
        self._read_at = time.monotonic()

    def abort(self, error: Exception) -> None:
        """The client has left."""
        self.close()

    def close(self) -> None:
        """It gets nothing more."""
        if not self.closed.done():
            self.closed.set_result(None)

    def send(self, update: bytes | None, now: float) -> None:
        """Send an update, or everything where it has missed one; ``now``: monotonic."""
        if self.closed.done():
            return
        if not self._client.ready:
            self._behind = True
            if now - self._read_at > STALLED_SECONDS:
                self.close()
                self._client.drop()
            return
        self._read_at = now
        try:
            if self._behind or update is None:
                self._client.put(self.scope.snapshot())
                self._behind = False
            else:
                self._client.put(update)
        except ClientGone:
            self.close()


class Viewers:
    """All viewers of this process, by scope."""

    def __init__(self) -> None:
        self.scopes: dict[tuple[str, bytes], Scope] = {}
        self._viewers: dict[Scope, list[Viewer]] = {}
        self.count = 0

    def of(self, scope: Scope) -> list[Viewer]:
        return self._viewers.get(scope, [])

    def add(self, viewer: Viewer) -> None:
        self.scopes[viewer.scope.name] = viewer.scope
        self._viewers.setdefault(viewer.scope, []).append(viewer)
        self.count += 1

    def check_room(self, scope: Scope) -> None:
        """Raises:
        Refused: 503, there are as many viewers as there may be.
        """
        if self.count >= MOST or (scope.key is not None and len(self.of(scope)) >= MOST_OF_KEY):
            message = "as many pages as allowed are open at this router; close one, or try again shortly"
            raise Refused(503, message, code="too_many_viewers", retry_after=10)

    def remove(self, viewer: Viewer) -> None:
        """It has ended."""
        left = self._viewers.get(viewer.scope)
        if left is None or viewer not in left:
            return
        left.remove(viewer)
        self.count -= 1
        if not left:
            del self._viewers[viewer.scope]
            self.scopes = {name: scope for name, scope in self.scopes.items() if scope is not viewer.scope}
