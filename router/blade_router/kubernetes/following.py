"""A mirror of a few objects: one list, then a watch, for ever.

What is known stays known whatever happens to the API: only an answer changes it. A watch that ends, breaks or falls
silent is continued where it was; a list is asked for again only when the server has forgotten that place (410).
Retries back off with jitter, so that the routers of a whole cluster do not all come at once when the API returns.
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
"""The server is asked to end a watch after once to twice this time, so that connections spread over its replicas."""
SILENCE = 90.0
"""Seconds without a byte after which a watch counts as stalled; the server sends a bookmark about every 60."""
BACKOFF_FIRST = 0.25
BACKOFF_MOST = 10.0
SETTLED = 10.0
"""Seconds a watch must last for what failed before to be forgotten."""
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


class Mirror(Generic[T]):
    """The objects of one collection that match a selector.

    Args:
        path: of the collection, e.g. ``/api/v1/namespaces/default/configmaps``.
        selector: query parameters that choose among its objects.
        kind: a struct with the fields to keep; all else is dropped when it arrives.
    """

    def __init__(self, cluster: Cluster, path: str, selector: Mapping[str, str], kind: type[T]) -> None:
        self.objects: dict[str, T] = {}
        """By name."""
        self.live = False
        """What is here is what the server has, as far as anyone can know."""
        self._cluster = cluster
        self._path = path
        self._selector = dict(selector)
        self._decode = msgspec.json.Decoder(kind).decode
        self._version = ""
        self._failures = 0
        self._complaint = ""

    async def follow(self, changed: Callable[[], object]) -> NoReturn:
        """Keep ``objects`` up to date, and call ``changed`` after each list and each event."""
        while True:
            try:
                if not self._version:
                    await self._list()
                    changed()
                await self._watch(changed)
                continue
            except ApiError as error:
                if error.status == GONE:
                    self._version = ""
                    if not self._failures:
                        self._failures = 1
                        continue
                problem, pause = str(error), error.retry_after
            except Exception as error:  # whatever it is, a router must not cease to follow
                logger.debug("%s", self._path, exc_info=True)
                self._version = ""
                problem, pause = f"{type(error).__name__}: {error}", 0.0
            self._complain(problem)
            await asyncio.sleep(max(pause, self._backoff()))

    async def _list(self) -> None:
        found = _decode_list(await self._cluster.get(self._path, self._selector))
        objects = [self._decode(item) for item in found.items]
        self.objects = {each.metadata.name: each for each in objects}
        self._version = found.metadata.resource_version
        self._answered()

    async def _watch(self, changed: Callable[[], object]) -> None:
        """Until the server ends the watch.

        Raises:
            ApiError: it failed; with status 410 when a new list is needed.
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
        self._answered()
        try:
            async for line in lines(connection, SILENCE):
                self._take(_decode_event(line), changed)
        finally:
            close(connection)
            if time.monotonic() - began > SETTLED:
                self._failures = 0
        if time.monotonic() - began < 1.0:
            raise ApiError("the watch ended at once")

    def _take(self, event: _Event, changed: Callable[[], object]) -> None:
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
        changed()

    def _answered(self) -> None:
        if self._complaint:
            logger.info("%s: following again", self._path)
        self.live, self._complaint = True, ""

    def _complain(self, problem: str) -> None:
        """Log it, but not the same again and again."""
        self.live = False
        if problem != self._complaint:
            logger.warning("%s: %s; what is known stays in effect", self._path, problem)
            self._complaint = problem

    def _backoff(self) -> float:
        self._failures += 1
        return min(BACKOFF_MOST, BACKOFF_FIRST * 2.0 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1.0)
