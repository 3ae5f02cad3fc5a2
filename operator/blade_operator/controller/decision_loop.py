"""The decision loop: looks at what the routers of each scaled service measure, every ten seconds.

A look costs a request to each router and a decision, a tenth of a reconcile or less. It observes nothing and writes
nothing: it goes by what the service's last reconcile saw, remembers the decision, and asks for a reconcile only when
the number of engines or the condition is to change. Numbers in the status wait for a resync.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from blade_operator import metrics
from blade_operator.controller.work_queue import Priority
from blade_operator.fleet import Router
from blade_operator.model.objects import Key
from blade_operator.model.scale_target import ScaleTarget
from blade_operator.reconcile.scaling.look import PERIOD, is_due, look
from blade_operator.scaling.autoscaler import Autoscaler
from blade_protocol.signals import RouterSignals

_log = logging.getLogger(__name__)

SLOTS = 40
"""Parts of a period: each has as many services as the others, which are looked at together."""

Query = Callable[[Sequence[Router]], Awaitable[Mapping[str, RouterSignals]]]


@dataclass(slots=True)
class _Watched:
    """A service that is looked at."""

    target: ScaleTarget
    routers: tuple[Router, ...]
    slot: int


class DecisionLoop:
    """Decides for the services of one controller.

    ``query``: the signals of routers by pod name, without those that do not respond; it limits how many it asks at the
    same time. ``enqueue``: the service is to be reconciled. ``now``: the time.
    """

    def __init__(
        self,
        query: Query,
        enqueue: Callable[[Key, Priority], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._query = query
        self._enqueue = enqueue
        self._now = now
        self._watched: dict[Key, _Watched] = {}
        self._slots: list[dict[Key, None]] = [{} for _ in range(SLOTS)]
        self._autoscalers: dict[Key, Autoscaler] = {}
        self._looking: dict[Key, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """Number of services that are looked at."""
        return len(self._watched)

    def remembered(self, key: Key) -> Autoscaler | None:
        """What is remembered of a service; None: it is not scaled, or not known yet."""
        return self._autoscalers.get(key)

    def remember(self, key: Key, autoscaler: Autoscaler | None) -> None:
        """Remember what a reconcile made of it; None: nothing."""
        if autoscaler is None:
            self._autoscalers.pop(key, None)
        else:
            self._autoscalers[key] = autoscaler

    def watch(self, key: Key, target: ScaleTarget | None, routers: tuple[Router, ...] = ()) -> None:
        """Look at a service from now on, as its reconcile saw it, by these routers; without ``target`` no more."""
        watched = self._watched.get(key)
        if target is None:
            if watched is not None:
                del self._watched[key], self._slots[watched.slot][key]
        elif watched is not None:
            watched.target, watched.routers = target, routers
        else:
            slot = min(range(SLOTS), key=lambda index: len(self._slots[index]))
            self._slots[slot][key] = None
            self._watched[key] = _Watched(target, routers, slot)
        metrics.SCALED_SERVICES.set(len(self._watched))

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self.watch(key, None)
        self.remember(key, None)

    async def run(self) -> None:
        """Look at everything in turn until cancelled."""
        clock = asyncio.get_running_loop().time
        turn, due = 0, clock()
        try:
            while True:
                self.begin(turn % SLOTS)
                turn += 1
                due = max(due + PERIOD / SLOTS, clock() - PERIOD / SLOTS)  # what was missed is not made up for
                await asyncio.sleep(due - clock())
        finally:
            for task in self._looking.values():
                task.cancel()
            await asyncio.gather(*self._looking.values(), return_exceptions=True)

    def begin(self, slot: int) -> None:
        """Begin to look at the services of one slot; not at those whose last look still waits for a response, nor at
        those for which a reconcile has just decided."""
        at = self._now().timestamp()
        for key in self._slots[slot]:
            known = self._autoscalers.get(key)
            if key not in self._looking and known is not None and is_due(known, at):
                self._looking[key] = asyncio.create_task(self._look(key), name=f"look at {key}")

    async def _look(self, key: Key) -> None:
        try:
            await self._decide(key)
        except Exception as error:
            metrics.LOOK_FAILURES.inc()
            _log.error("%s: no decision: %s", key, error, exc_info=_log.isEnabledFor(logging.DEBUG))
        finally:
            del self._looking[key]

    async def _decide(self, key: Key) -> None:
        signals = await self._query(self._watched[key].routers)
        # There may have been a reconcile meanwhile, or the service has gone.
        watched, known, now = self._watched.get(key), self._autoscalers.get(key), self._now()
        if watched is None or known is None or known.uid != watched.target.uid or not is_due(known, now.timestamp()):
            return
        found = look(watched.target, known, signals, now)
        self._autoscalers[key] = found.autoscaler
        metrics.DECISIONS.inc()
        if found.scales:
            self._enqueue(key, Priority.SCALING)
        elif found.publishes:
            self._enqueue(key, Priority.RESYNC)
