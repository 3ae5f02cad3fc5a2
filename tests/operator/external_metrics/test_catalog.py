"""What each metric is made of, and when it has no value: an autoscaler must not take silence for idleness."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from operator_support.mini_cluster import engine_state

from blade_operator.external_metrics.catalog import METRICS, Measured, NotMeasured
from blade_protocol.signals import Percentiles, RouterSignals, ServiceSignals
from blade_protocol.state import EngineState


def _router(**fields: Any) -> RouterSignals:
    return RouterSignals(started=1.0, time=2.0, **fields)


def _services(*queues: tuple[int, int]) -> tuple[ServiceSignals, ...]:
    return tuple(ServiceSignals(service="qwen", queued_requests=q, held_requests=h) for q, h in queues)


def _engine(**fields: int) -> EngineState:
    return msgspec.structs.replace(engine_state({"metadata": {}}), **fields)


BUSY = Measured(
    (
        _router(in_flight=7, services=_services((3, 1)), ttft_seconds=Percentiles(p90=0.35), arrivals_per_second=2.0),
        _router(in_flight=5, services=_services((2, 0)), tpot_seconds=Percentiles(p90=0.0123)),
    ),
    (_engine(waiting=4, kv_blocks_total=10, kv_blocks_free=4), _engine(kv_blocks_total=20, kv_blocks_free=20)),
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bladellm_queued_requests", 3 + 1 + 2 + 4),
        ("bladellm_in_flight_requests", 12),
        ("bladellm_ttft_p90_seconds", 0.35),
        ("bladellm_tpot_p90_seconds", 0.0123),
        ("bladellm_kv_cache_usage", 0.3),
    ],
)
def test_values_are_of_all_pods(name: str, value: float) -> None:
    assert METRICS[name].value(BUSY) == pytest.approx(value)


OF_ROUTERS = {
    "bladellm_queued_requests",
    "bladellm_in_flight_requests",
    "bladellm_ttft_p90_seconds",
    "bladellm_tpot_p90_seconds",
}
OF_ENGINES = {"bladellm_queued_requests", "bladellm_kv_cache_usage"}


def _unknown(measured: Measured) -> dict[str, str]:
    reasons = {}
    for name, metric in METRICS.items():
        try:
            metric.value(measured)
        except NotMeasured as error:
            reasons[name] = str(error)
    return reasons


def test_a_sum_without_the_share_of_a_silent_pod_is_no_value() -> None:
    silent = _unknown(Measured(BUSY.routers, BUSY.engines, silent_routers=("qwen-router-x",)))
    assert silent == dict.fromkeys(OF_ROUTERS, "no response from router qwen-router-x")
    silent = _unknown(Measured(BUSY.routers, BUSY.engines, silent_engines=("a", "b")))
    assert silent == dict.fromkeys(OF_ENGINES, "no response from engine a, b")


def test_without_routers_and_engines_nothing_is_zero() -> None:
    assert _unknown(Measured(engines=BUSY.engines)) == dict.fromkeys(OF_ROUTERS, "no router has started")
    assert _unknown(Measured(BUSY.routers)) == {"bladellm_kv_cache_usage": "no engine with a KV cache is ready"}
    pooling = _unknown(Measured(BUSY.routers, (_engine(kv_blocks_total=0, kv_blocks_free=0),)))
    assert pooling == {"bladellm_kv_cache_usage": "no engine with a KV cache is ready"}


def test_latency_is_zero_for_a_service_without_requests_and_unknown_for_one_whose_requests_show_none() -> None:
    ttft, tpot = METRICS["bladellm_ttft_p90_seconds"], METRICS["bladellm_tpot_p90_seconds"]
    idle = Measured((_router(), _router()))
    assert (ttft.value(idle), tpot.value(idle)) == (0, 0)
    for waiting in (_router(in_flight=1), _router(arrivals_per_second=0.1)):
        stuck = Measured((_router(), waiting))
        with pytest.raises(NotMeasured, match="no streamed response has begun in the last 60 s"):
            ttft.value(stuck)
        with pytest.raises(NotMeasured, match="no stream that reports its usage has ended in the last 60 s"):
            tpot.value(stuck)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_numbers_that_are_none_are_no_value(wrong: float) -> None:
    signals = msgspec.structs.replace(
        BUSY.routers[0],
        ttft_seconds=Percentiles(p90=wrong),
        tpot_seconds=Percentiles(p90=wrong),
        in_flight=-100,
        services=_services((-100, 0)),
    )
    measured = Measured((BUSY.routers[1], signals), (_engine(kv_blocks_total=10, kv_blocks_free=12),))
    unknown = _unknown(measured)
    if wrong < 0:
        assert unknown.keys() == METRICS.keys() - {"bladellm_tpot_p90_seconds"}
    else:
        assert unknown.keys() == METRICS.keys()
