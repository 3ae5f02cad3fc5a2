"""A reflector, as in client-go: one list, then a watch, for ever, into an informer cache of a few objects.

The cache survives every API failure: only a response changes it. A watch that ends, breaks or stalls is continued from
its last resourceVersion; it relists only when the server has expired that version (410 Gone). Retries back off with
jitter, so that the routers of a whole cluster do not all come at once when the API returns.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Generic, NoReturn, Protocol, TypeVar

import msgspec

from blade_router.kubernetes.api import ApiError, Cluster, Status, close, lines

logger = logging.getLogger("blade_router.kubernetes")

WATCH_SECONDS = 300
"""``timeoutSeconds`` of a watch, once to twice this, so that connections spread over the API server's replicas."""
WATCH_IDLE_TIMEOUT = 90.0
"""Seconds without a byte after which a watch counts as stalled; the server sends a bookmark about every 60."""
INITIAL_BACKOFF = 0.25
MAX_BACKOFF = 10.0
STABLE_SECONDS = 10.0
"""Seconds a watch must last to reset the backoff."""
GONE = 410


class Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class KubernetesObject(Protocol):
    metadata: Metadata


T = TypeVar("T", bound=KubernetesObject)


class _List(msgspec.Struct):
    metadata: Metadata
    items: list[msgspec.Raw] = []


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: Metadata


_decode_list = msgspec.json.Decoder(_List).decode
_decode_event = msgspec.json.Decoder(_Event).decode
_decode_bookmark = msgspec.json.Decoder(_Bookmark).decode
_decode_status = msgspec.json.Decoder(Status).decode


class Reflector(Generic[T]):
    """Lists and watches the objects of one collection that match a selector.

    Args:
        path: of the collection, e.g. ``/api/v1/namespaces/default/configmaps``.
        selector: query parameters: a label or field selector.
        kind: a struct with the fields to keep; all else is dropped on arrival.
    """

    def __init__(self, cluster: Cluster, path: str, selector: Mapping[str, str], kind: type[T]) -> None:
        self.objects: dict[str, T] = {}
        """The cached objects by name."""
        self.live = False
        """The cache is in sync with the server, as far as is known."""
        self._cluster = cluster
        self._path = path
        self._selector = dict(selector)
        self._decode = msgspec.json.Decoder(kind).decode
        self._version = ""
        self._failures = 0
        self._last_error = ""

    async def run(self, on_change: Callable[[], object]) -> NoReturn:
        """Keep ``objects`` in sync, and call ``on_change`` after each list and each event."""
        while True:
            try:
                if not self._version:
                    await self._list()
                    on_change()
                await self._watch(on_change)
                continue
            except ApiError as error:
                if error.status == GONE:
                    self._version = ""
                    if not self._failures:
                        self._failures = 1
                        continue
                problem, pause = str(error), error.retry_after
            except Exception as error:  # whatever it is, the reflector must go on
                logger.debug("%s", self._path, exc_info=True)
                self._version = ""
                problem, pause = f"{type(error).__name__}: {error}", 0.0
            self._report_failure(problem)
            await asyncio.sleep(max(pause, self._backoff()))

    async def _list(self) -> None:
        found = _decode_list(await self._cluster.get(self._path, self._selector))
        objects = [self._decode(item) for item in found.items]
        self.objects = {each.metadata.name: each for each in objects}
        self._version = found.metadata.resource_version
        self._recovered()

    async def _watch(self, on_change: Callable[[], object]) -> None:
        """Apply events until the server ends the watch.

        Raises:
            ApiError: it failed; with status 410 when a relist is needed.
        """
        seconds = WATCH_SECONDS * random.uniform(1, 2)
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(round(seconds)),
        }
        connection = await self._cluster.open(self._path, self._selector | query)
        began = time.monotonic()
        self._recovered()
        try:
            async for line in lines(connection, WATCH_IDLE_TIMEOUT):
                self._apply_event(_decode_event(line), on_change)
        finally:
            close(connection)
            if time.monotonic() - began > STABLE_SECONDS:
                self._failures = 0
        if time.monotonic() - began < 1.0:
            raise ApiError("the watch ended at once")

    def _apply_event(self, event: _Event, on_change: Callable[[], object]) -> None:
        if event.type == "ERROR":
            status = _decode_status(event.object)
            raise ApiError(status.message or f"the watch failed with {status.code}", status.code)
        self._failures = 0
        if event.type == "BOOKMARK":
            self._version = _decode_bookmark(event.object).metadata.resource_version
            return
        found = self._decode(event.object)
        self._version = found.metadata.resource_version
        if event.type == "DELETED":
            self.objects.pop(found.metadata.name, None)
        else:
            self.objects[found.metadata.name] = found
        on_change()

    def _recovered(self) -> None:
        if self._last_error:
            logger.info("%s: in sync again", self._path)
        self.live, self._last_error = True, ""

    def _report_failure(self, problem: str) -> None:
        """Log a failure, but not the same one again and again."""
        self.live = False
        if problem != self._last_error:
            logger.warning("%s: %s; what is known stays in effect", self._path, problem)
            self._last_error = problem

    def _backoff(self) -> float:
        self._failures += 1
        return min(MAX_BACKOFF, INITIAL_BACKOFF * 2.0 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1.0)
