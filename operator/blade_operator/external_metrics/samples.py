"""What services measured last: their pods are asked when someone asks for a metric, every few seconds at most.

Every operator process does this for itself, standbys too: no leader has to be found, and one that is lost takes no
metrics with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from blade_operator.external_metrics.catalog import Measured, Metric, NotMeasured
from blade_operator.fleet import FleetReport
from blade_operator.model import pods as podutil
from blade_operator.model.objects import Key, Object
from blade_operator.model.observed import Observed
from blade_protocol.labels import ROLE_ENGINE, ROLE_ROUTER

FRESH_SECONDS: Final = 3.0
"""For which a sample is not taken again: HorizontalPodAutoscalers with several metrics ask for each by itself."""
USABLE_SECONDS: Final = 15.0
"""For which the last value counts, while a pod does not respond."""
KEPT_SECONDS: Final = 60.0
"""After which a service that nobody asks about is forgotten."""
AT_ONCE: Final = 16
"""Services whose pods are asked at the same time."""

Query = Callable[[Iterable[Object]], Awaitable[FleetReport]]


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured of a service at a time."""

    taken: float
    at: datetime
    measured: Measured


class Samples:
    """Samples of services.

    ``observe``: the service and its pods; None when it is not there. ``query``: what those pods say, routers included.
    ``is_foreign``: whether another installation of the operator has the tokens of its pods.
    """

    def __init__(
        self,
        observe: Callable[[Key], Awaitable[Observed | None]],
        query: Query,
        is_foreign: Callable[[Observed], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observe = observe
        self._query = query
        self._is_foreign = is_foreign
        self._clock = clock
        self._latest: dict[Key, list[Sample]] = {}
        """The newest last; of those before it only what may still be of use."""
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def value(self, key: Key, metric: Metric) -> tuple[datetime, float]:
        """The present value of ``metric`` for a service, and when it was measured.

        Raises:
            NotMeasured: it has none, or the service does not exist.
        """
        samples = self._latest.get(key, [])
        if not samples or self._clock() - samples[-1].taken >= FRESH_SECONDS:
            task = self._running.get(key)
            if task is None:
                task = self._running[key] = asyncio.create_task(self._take(key))
                task.add_done_callback(lambda ended: self._ended(key, ended))
            await asyncio.shield(task)
            samples = self._latest[key]
        reasons = list[NotMeasured]()
        for sample in reversed(samples):
            try:
                return sample.at, metric.value(sample.measured)
            except NotMeasured as error:
                reasons.append(error)
                if not _lacks_a_pod(sample.measured):
                    break
        raise NotMeasured(f"{metric.name} of LLMService {key}: {reasons[0]}")

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # who asked may have gone: then nobody else looks at it

    async def _take(self, key: Key) -> None:
        async with self._places:
            observed = await self._observe(key)
            if observed is None:
                self._latest.pop(key, None)
                raise NotMeasured(f"LLMService {key} is not there, or its pods have not been listed yet")
            if self._is_foreign(observed):
                self._latest.pop(key, None)
                raise NotMeasured(f"LLMService {key} belongs to another installation of the operator")
            report = await self._query(observed.pods)
        taken = self._clock()
        before = [each for each in self._latest.get(key, []) if taken - each.taken <= USABLE_SECONDS]
        sample = Sample(taken, datetime.now(UTC), measured(observed.pods, report))
        self._latest[key] = [*before, sample] if _lacks_a_pod(sample.measured) else [sample]
        for other in [each for each, samples in self._latest.items() if taken - samples[-1].taken > KEPT_SECONDS]:
            del self._latest[other]


def measured(pods: Iterable[Object], report: FleetReport) -> Measured:
    """What the pods of a service said, and which of them should have said something."""
    silent: dict[str, list[str]] = {ROLE_ROUTER: [], ROLE_ENGINE: []}
    heard = report.signals.keys() | report.engines.keys()
    for pod in pods:
        role = podutil.role(pod)
        if role in silent and podutil.is_ready(pod) and pod["metadata"]["name"] not in heard:
            silent[role].append(pod["metadata"]["name"])
    return Measured(
        tuple(report.signals.values()),
        tuple(state for state in report.engines.values() if state.ready and not state.draining),
        tuple(sorted(silent[ROLE_ROUTER])),
        tuple(sorted(silent[ROLE_ENGINE])),
    )


def _lacks_a_pod(measured: Measured) -> bool:
    return bool(measured.silent_routers or measured.silent_engines)
