"""Rates, percentiles and states of ``top``, from two scrapes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from operator_support.fake_cluster import llm
from rich.console import Console

from blade_operator.cluster.local.layout import Layout
from blade_operator.kubectl.commands.top import _data, _view
from blade_operator.kubectl.load import WINDOW, Monitor, Sample
from blade_operator.kubectl.places.local_place import LocalPlace
from blade_operator.kubectl.scrape import Scrape, quantile


def _histogram(name: str, *counts: int) -> str:
    bounds = ["0.1", "0.2", "0.4", "+Inf"]
    return "".join(f'{name}_bucket{{le="{le}"}} {count}\n' for le, count in zip(bounds, counts, strict=True))


def _engine(tokens: int, ttft: tuple[int, ...], prompt: int = 100, cached: int = 25) -> Scrape:
    return Scrape(
        f'blade_llm_generation_tokens_total{{model_name="a"}} {tokens}\n'
        f"blade_llm_prompt_tokens_total {prompt}\nblade_llm_prompt_tokens_cached_total {cached}\n"
        "blade_llm_num_requests_running 3\nblade_llm_num_requests_waiting 1\nblade_llm_kv_cache_usage_ratio 0.5\n"
        'blade_llm_memory_bytes{purpose="weights"} 3\nblade_llm_memory_bytes{purpose="free"} 9\n'
        + _histogram("blade_llm_time_to_first_token_seconds", *ttft)
    )


def _monitor(*samples: Sample) -> Monitor:
    monitor = Monitor(LocalPlace(Layout.of("none")), llm(phase="Ready", readyReplicas=1, desiredReplicas=1))
    monitor.samples.extend(samples)
    return monitor


def _sample(time: float, tokens: int, ttft: tuple[int, ...], requests: int, up: bool | None = True) -> Sample:
    router = Scrape(
        f'blade_router_requests_total{{code="200"}} {requests}\nblade_router_prefix_hit_ratio 0.75\n'
        f'blade_router_tokens_total{{kind="completion",model="a"}} {tokens}\n'
        f'blade_router_tokens_total{{kind="prompt",model="a"}} 999\nblade_router_queue_requests{{service=""}} 2\n'
        + _histogram("blade_router_time_to_first_token_seconds", *ttft)
    )
    return Sample(time, {"r": router}, {"e": _engine(tokens, ttft)}, {"e": {"name": "e", "up": up}})


def test_rates_and_percentiles_are_those_between_two_scrapes() -> None:
    with _monitor(_sample(10.0, 100, (4, 4, 4, 4), 20), _sample(20.0, 600, (4, 14, 14, 14), 50)) as monitor:
        service, engine = monitor.loads()
    assert (service.tokens_per_second, service.requests_per_second) == (50.0, 3.0)
    assert (service.running, service.waiting, service.state) == (3, 3, "1/1 Ready")
    assert service.hit_ratio == 0.75
    assert service.ttft_p50 == pytest.approx(0.15)
    assert (engine.tokens_per_second, engine.kv_usage, engine.memory_bytes, engine.state) == (50.0, 0.5, 3.0, "up")
    assert engine.hit_ratio is None  # no prompt came between them


def test_since_the_start_counts_what_was_before() -> None:
    with _monitor(_sample(10.0, 0, (4, 4, 4, 4), 0), _sample(11.0, 0, (4, 4, 4, 4), 0)) as monitor:
        assert monitor.loads()[0].ttft_p50 is None
        service, engine = monitor.loads(since_start=True)
    assert service.ttft_p50 == pytest.approx(0.05)
    assert engine.hit_ratio == 0.25


def test_a_restart_never_makes_a_rate_negative() -> None:
    with _monitor(_sample(10.0, 900, (9, 9, 9, 9), 90), _sample(20.0, 50, (1, 1, 1, 1), 10)) as monitor:
        service, engine = monitor.loads()
    assert (service.tokens_per_second, service.requests_per_second, engine.tokens_per_second) == (5.0, 1.0, 5.0)
    assert service.ttft_p50 == pytest.approx(0.05)


def test_one_sample_has_no_rates_and_an_engine_that_is_silent_is_seen_by_the_router() -> None:
    sample = _sample(1.0, 5, (0, 0, 0, 0), 0, up=False)
    gone = {**sample.endpoints, "f": {"name": "f", "up": None, "running": 7, "draining": True}}
    with _monitor(Sample(1.0, sample.routers, sample.engines, gone)) as monitor:
        service, first, second = monitor.loads()
    assert service.tokens_per_second is None
    assert (first.state, second.state, second.running, service.running) == ("down", "draining", 7, 10)


def test_quantiles() -> None:
    assert quantile(0.5, {}) is None
    assert quantile(0.5, {0.1: 0.0, float("inf"): 0.0}) is None
    assert quantile(0.5, {1.0: 10.0, 2.0: 10.0, float("inf"): 10.0}) == 0.5
    assert quantile(0.99, {1.0: 0.0, float("inf"): 10.0}) == 1.0


@pytest.mark.parametrize(
    ("interval", "kept"), [(WINDOW / 3, [2.0, 3.0, 4.0, 5.0]), (WINDOW * 2, [4.0, 5.0])], ids=["short", "long"]
)
def test_samples_of_a_window_stay_and_always_two(
    interval: float, kept: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Monitor(LocalPlace(Layout(tmp_path)), llm()) as monitor:
        for number in range(6):
            monkeypatch.setattr("blade_operator.kubectl.load.time.monotonic", lambda at=number * interval: at)
            monitor.measure()
        assert [sample.time for sample in monitor.samples] == pytest.approx([each * interval for each in kept])


def test_a_cost_is_said_in_words_and_nothing_of_the_operators_own() -> None:
    cost = {"currency": "EUR", "window": "1h", "perHour": "2.5", "perMillionTokens": "0.41", "state": "[[1,2]]"}
    with _monitor(_sample(1.0, 5, (0, 0, 0, 0), 0)) as monitor:
        monitor.service["status"]["cost"] = cost
        out = io.StringIO()
        Console(file=out, width=200, color_system=None).print(_view([monitor], 200))
        assert "costs: 0.41 EUR for a million tokens, 2.5 EUR an hour, over the last 1h\n" in out.getvalue()
        assert "[[" not in out.getvalue()
        assert "state" not in _data(monitor)["cost"]
        monitor.service["status"]["cost"] = {"currency": "EUR"}
        out = io.StringIO()
        Console(file=out, width=200, color_system=None).print(_view([monitor], 200))
        assert "costs: not measured yet" in out.getvalue()
