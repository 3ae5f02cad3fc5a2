"""The metrics of an LLMService that an autoscaler can read, and how each follows from what routers and engines report.

A value that is not known is an error, never 0: a HorizontalPodAutoscaler keeps its replicas then, and a 0 would have it
scale down. So is a sum that lacks the share of one pod.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from blade_protocol.signals import RouterSignals
from blade_protocol.state import EngineState

WINDOW: Final = 60
"""Seconds that rates and percentiles are taken over, by routers."""


class NotMeasured(Exception):
    """A metric has no value now, for the reason in this exception."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the pods of one service reported."""

    routers: tuple[RouterSignals, ...] = ()
    engines: tuple[EngineState, ...] = ()
    """Those that are ready and do not drain."""
    silent_routers: tuple[str, ...] = ()
    """Pods that are Ready and did not respond."""
    silent_engines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str
    help: str
    compute: Callable[[Measured], float]

    def value(self, measured: Measured) -> float:
        """Its value, finite and not negative.

        Raises:
            NotMeasured: it has none now.
        """
        value = self.compute(measured)
        if not math.isfinite(value) or value < 0:
            raise NotMeasured(f"a pod reports {value}")
        return value


def _of_routers(measured: Measured) -> tuple[RouterSignals, ...]:
    if measured.silent_routers:
        raise NotMeasured(f"no response from router {', '.join(measured.silent_routers)}")
    if not measured.routers:
        raise NotMeasured("no router has started")
    return measured.routers


def _of_engines(measured: Measured) -> tuple[EngineState, ...]:
    if measured.silent_engines:
        raise NotMeasured(f"no response from engine {', '.join(measured.silent_engines)}")
    return measured.engines


def _queued(measured: Measured) -> float:
    in_routers = sum(each.waiting for router in _of_routers(measured) for each in router.services)
    return in_routers + sum(engine.waiting for engine in _of_engines(measured))


def _in_flight(measured: Measured) -> float:
    return sum(router.in_flight for router in _of_routers(measured))


def _slowest(routers: tuple[RouterSignals, ...], seconds: list[float], what: str) -> float:
    """The largest of the routers' percentiles; 0 for a service that had no request in the last minute.

    A router's percentile of 0 means that it measured none.
    """
    if any(math.isnan(each) for each in seconds):
        return math.nan
    slowest = max(seconds)
    if slowest == 0 and any(router.in_flight or router.arrivals_per_second for router in routers):
        raise NotMeasured(f"{what} in the last {WINDOW} s")
    return slowest


def _ttft(measured: Measured) -> float:
    routers = _of_routers(measured)
    return _slowest(routers, [router.ttft_seconds.p90 for router in routers], "no streamed response has begun")


def _tpot(measured: Measured) -> float:
    routers = _of_routers(measured)
    return _slowest(
        routers, [router.tpot_seconds.p90 for router in routers], "no stream that reports its usage has ended"
    )


def _kv_usage(measured: Measured) -> float:
    shares = [
        1.0 - engine.kv_blocks_free / engine.kv_blocks_total
        for engine in _of_engines(measured)
        if engine.kv_blocks_total > 0
    ]
    if not shares:
        raise NotMeasured("no engine with a KV cache is ready")
    return sum(shares) / len(shares)


METRICS: Final = MappingProxyType(
    {
        metric.name: metric
        for metric in (
            Metric(
                "bladellm_queued_requests",
                "Requests that wait: in routers for a slot or an engine, and in engines for a slot.",
                _queued,
            ),
            Metric("bladellm_in_flight_requests", "Requests in flight, those that wait included.", _in_flight),
            Metric(
                "bladellm_ttft_p90_seconds",
                "90th percentile of the time to the first token of the last minute, waiting included.",
                _ttft,
            ),
            Metric("bladellm_tpot_p90_seconds", "90th percentile of the time per token after the first one.", _tpot),
            Metric(
                "bladellm_kv_cache_usage",
                "Share of the KV cache in use, from 0 to 1: the mean over ready engines.",
                _kv_usage,
            ),
        )
    }
)
"""All of them, by name."""
