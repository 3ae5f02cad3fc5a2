"""Shadow traffic: a copy of some requests goes to engines of another revision, and its answer is compared, never sent.

The original knows nothing of it: a copy is a task of its own with a connection of its own, and touches no health,
limit, slot or metric of requests. What it takes is bounded in number, bytes and time; what is over a bound is dropped
and counted, and nothing waits for its turn.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Final

from blade_protocol import paths
from blade_router.config.token_header import TokenHeader
from blade_router.endpoints.endpoint import Endpoint
from blade_router.endpoints.endpoint_set import EndpointSet
from blade_router.proxy.shadow_copy import ShadowCopy
from blade_router.request.request import NO_COMMENTS, ClientRequest
from blade_router.statistics.revisions import Attempt
from blade_router.statistics.shadow import ShadowCounts

MAX_BODY: Final = 256 << 10
"""Bytes of a request's body: a larger one is not copied."""
MAX_RUNNING: Final = 16
"""Copies under way in a process."""
COPIED: Final = frozenset((paths.CHAT_COMPLETIONS, paths.COMPLETIONS, paths.MESSAGES))
"""What changes nothing in an engine, and answers in a text."""


class Shadows:
    """The copies for one revision.

    Args:
        share: percent of the requests that are copied.
        first_byte_timeout, stall_timeout: as for requests, in seconds; 0 for none.
        draw: a random number from 0 to 1.
    """

    def __init__(
        self,
        counts: ShadowCounts,
        endpoints: EndpointSet,
        token: TokenHeader,
        *,
        share: float = 0.0,
        first_byte_timeout: float = 0.0,
        stall_timeout: float = 0.0,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.counts = counts
        self.share = share
        self._endpoints = endpoints
        self._token = token
        self._first_byte_timeout = first_byte_timeout
        self._stall_timeout = stall_timeout
        self._draw = draw
        self._running: set[ShadowCopy] = set()

    @property
    def revision(self) -> str:
        """Whose engines get the copies."""
        return self.counts.revision

    @property
    def running(self) -> int:
        """Copies under way."""
        return len(self._running)

    def begin(
        self, attempt: Attempt, endpoint: Endpoint, request: ClientRequest, service: str, adapter: str | None, key: str
    ) -> None:
        """Copy this request, if its turn has come. It itself is about to be sent to ``endpoint``, and is so first.

        Args:
            service, adapter, key: as for ``EndpointSet.candidates``.
        """
        if request.path not in COPIED or request.method != "POST" or endpoint.revision == self.revision:
            return
        if self._draw() * 100.0 >= self.share:
            return
        if len(request.body) > MAX_BODY:
            self.counts.dropped("large")
            return
        if len(self._running) >= MAX_RUNNING:
            self.counts.dropped("busy")
            return
        target = self._choose(service, adapter, key)
        if target is None:
            self.counts.dropped("no_engine")
            return
        self.counts.sent()
        extra = self._token.lines() + NO_COMMENTS if target.config.engine == "blade" else b""
        head = request.head_for(target.authority, extra, b"-shadow")
        copy = ShadowCopy(self.counts, target, head, request.body, self._first_byte_timeout, self._stall_timeout)
        attempt.answer = request.answer = copy.original
        self._running.add(copy)
        copy.start(self._running.discard)

    def stop(self) -> list[asyncio.Task[None]]:
        """Break off all copies. They have ended as soon as these tasks have."""
        tasks = [copy.task for copy in self._running if copy.task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def _choose(self, service: str, adapter: str | None, key: str) -> Endpoint | None:
        """The least loaded engine of the revision; None where none is well."""
        found, panic = self._endpoints.candidates((), service, adapter, key)
        if panic:
            return None
        candidates = [each for each in found if each.revision == self.revision and each.health.breaker.closed]
        loads = [(self._load(each), place) for place, each in enumerate(candidates)]
        return candidates[min(loads)[1]] if loads else None

    def _load(self, endpoint: Endpoint) -> int:
        """Requests on it: by its last report, and the copies that this process has sent, if those are more."""
        mine = endpoint.in_flight
        for copy in self._running:
            mine += copy.endpoint is endpoint
        return max(mine, endpoint.report.running + endpoint.report.waiting)
