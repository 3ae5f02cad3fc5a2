"""Tells the routers of each service how it is, for their web UI: after a change, and when a router has just come up.

A router forgets the report with its process, and nobody depends on it: one that did not get it gets it after the next
reconcile, and every one now and then again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from blade_operator.fleet import Router
from blade_operator.model import pods as podutil
from blade_operator.model.objects import Key, Object
from blade_operator.model.plan import EventRecord
from blade_operator.status.report import MAX_EVENTS, encode, service_report
from blade_protocol.labels import KIND

AGAIN_SECONDS = 300.0
"""Seconds after which a router gets a report that has not changed: it may have lost it."""

Send = Callable[[Router, bytes], Awaitable[bool]]
"""Sends a report to a router; False: it has to be tried again."""


@dataclass(slots=True)
class _Service:
    events: deque[Object] = field(default_factory=lambda: deque[Object](maxlen=MAX_EVENTS))
    sent: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By the process of a router, the hash of what it got last, and when (monotonic)."""


class ServiceReports:
    """What each router has been told."""

    def __init__(self, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self._send = send
        self._clock = clock
        self._services: dict[Key, _Service] = {}

    def record(self, key: Key, events: Iterable[EventRecord], now: datetime) -> None:
        """Remember Events of the service; a repeated one only increases its count."""
        known = self._services.setdefault(key, _Service()).events
        for event in events:
            count = 1
            for entry in list(known):
                if (entry["type"], entry["reason"], entry["message"]) == (event.type, event.reason, event.message):
                    count = entry["count"] + 1
                    known.remove(entry)
            known.append(
                {
                    "time": round(now.timestamp(), 3),
                    "type": event.type,
                    "reason": event.reason,
                    "message": event.message,
                    "object": f"{KIND}/{key.name}",
                    "count": count,
                }
            )

    async def send(
        self,
        key: Key,
        service: Object,
        status: Object,
        pods: Sequence[Object],
        routers: Sequence[Router],
        now: datetime,
    ) -> None:
        """Tell those of ``routers`` that do not know it yet how the service is."""
        known = self._services.setdefault(key, _Service())
        processes = {router.name: _process(router, pods) for router in routers}
        known.sent = {process: each for process, each in known.sent.items() if process in processes.values()}
        if not routers or not has_ui(service):
            return
        report = service_report(service, status, pods, tuple(known.events), now)
        digest = hashlib.sha256(msgspec.json.encode({**report, "reported": 0})).hexdigest()
        due = [router for router in routers if self._is_due(known.sent.get(processes[router.name]), digest)]
        if not due:
            return
        body = encode(report)
        for router, done in zip(due, await asyncio.gather(*(self._send(each, body) for each in due)), strict=True):
            if done:
                known.sent[processes[router.name]] = digest, self._clock()

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._services.pop(key, None)

    def _is_due(self, sent: tuple[str, float] | None, digest: str) -> bool:
        return sent is None or sent[0] != digest or self._clock() - sent[1] >= AGAIN_SECONDS


def has_ui(service: Object) -> bool:
    """Whether the spec, which may be of any form, leaves the routers their web UI."""
    part: object = service.get("spec")
    for name in ("router", "ui"):
        part = part.get(name) if isinstance(part, dict) else None
    return not isinstance(part, dict) or part.get("enabled") is not False


def _process(router: Router, pods: Sequence[Object]) -> str:
    """Names a router's process: a container that was restarted is another one."""
    pod = next((pod for pod in pods if pod["metadata"]["name"] == router.name), {})
    restarts = sum(state.restarts for state in podutil.containers(pod)) if pod else 0
    return f"{router.peer.identity} {restarts}"
