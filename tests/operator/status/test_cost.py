"""`status.cost`: money by the prices of the spec, nothing before there is data, and no write for nothing."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model import pods as podutil
from blade_operator.model.observed import needs_signals
from blade_operator.spec.pricing_fields import Pricing
from blade_operator.status.cost import figures, is_cost_due, price_of_engine
from blade_operator.status.usage import Usage
from blade_protocol.signals import RouterSignals

EUR = {"currency": "EUR", "perEngineHour": "3.60"}


class Priced(MiniCluster):
    """A service with prices, whose one router counts what the test says."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(service({"pricing": EUR, **spec}))
        self.started = self.now.timestamp() - 1000
        self.prompt = self.completion = 0
        self.signals = self._signals
        self.writes = 0
        self.converge()

    def _signals(self, at: float) -> dict[str, RouterSignals]:
        routers = [pod["metadata"]["name"] for pod in self.pods if podutil.role(pod) == "router"]
        said = RouterSignals(
            started=self.started, time=at, prompt_tokens=self.prompt, completion_tokens=self.completion
        )
        return dict.fromkeys(routers, said)

    def minutes(self, count: int, prompt: int = 0, completion: int = 0, looks: int = 1) -> None:
        """So many minutes with so many tokens in each, and reconciles a minute."""
        for _ in range(count):
            self.prompt, self.completion = self.prompt + prompt, self.completion + completion
            for _ in range(looks):
                self.now += timedelta(seconds=60 / looks - 1)
                self.writes += self.reconcile().status is not None

    @property
    def cost(self) -> dict[str, Any]:
        found: dict[str, Any] = self.service["status"].get("cost", {})
        return found


def amount(text: str) -> float:
    return float(text)


def test_nothing_is_said_before_there_is_a_minute_of_data() -> None:
    cluster = Priced()
    assert {*cluster.cost} == {"currency", "observedAt", "state"}
    cluster.minutes(2)
    assert amount(cluster.cost["perHour"]) == pytest.approx(3.6, rel=0.06)
    assert cluster.cost["window"] == "1m"


def test_tokens_have_a_price_once_there_are_any() -> None:
    cluster = Priced(replicas=2)
    cluster.minutes(30)
    assert amount(cluster.cost["perHour"]) == pytest.approx(7.2, rel=0.03)
    assert "perMillionTokens" not in cluster.cost
    assert "completionTokens" not in cluster.cost
    cluster.minutes(70, prompt=50_000, completion=10_000)
    # An hour: 7.20 for 3.6 million tokens, of which 0.6 million are of answers.
    assert amount(cluster.cost["perMillionTokens"]) == pytest.approx(2, rel=0.05)
    assert amount(cluster.cost["perMillionCompletionTokens"]) == pytest.approx(12, rel=0.05)
    assert cluster.cost["window"] == "1h"
    assert cluster.cost["engineHours"] == "2.00"
    assert cluster.cost["promptTokens"] == pytest.approx(3_000_000, rel=0.05)


def test_gpus_are_priced_by_their_number() -> None:
    price = {"currency": "USD", "perGpuHour": "1.5"}
    cluster = Priced(replicas=2, engine={"gpus": {"count": 4}}, pricing=price)
    cluster.minutes(5)
    assert amount(cluster.cost["perHour"]) == pytest.approx(12, rel=0.03)
    assert cluster.cost["currency"] == "USD"


def test_a_service_at_rest_writes_nothing() -> None:
    cluster = Priced()
    cluster.minutes(70)
    cluster.writes = 0
    cluster.minutes(20, looks=3)
    assert cluster.writes == 0


def test_steady_traffic_writes_at_most_every_five_minutes() -> None:
    cluster = Priced()
    cluster.minutes(70, prompt=1000, completion=500)
    cluster.writes = 0
    cluster.minutes(30, prompt=1000, completion=500, looks=3)
    assert 3 <= cluster.writes <= 7


def test_wild_traffic_writes_at_most_once_a_minute() -> None:
    cluster = Priced()
    cluster.minutes(10)
    cluster.writes = 0
    for minute in range(30):
        cluster.minutes(1, completion=10 ** (minute % 7), looks=3)
    assert 5 <= cluster.writes <= 30


def test_an_operator_that_restarts_goes_on() -> None:
    """It remembers nothing, and was away for ten minutes in which the engines worked on."""
    cluster = Priced()
    cluster.minutes(20, completion=10_000)
    cluster.autoscaler = None
    cluster.completion += 100_000
    cluster.now += timedelta(minutes=10)
    cluster.minutes(20, completion=10_000)
    assert cluster.cost["completionTokens"] == pytest.approx(500_000, rel=0.05)
    assert amount(cluster.cost["engineHours"]) == pytest.approx(50 / 60, rel=0.05)


def test_a_router_that_restarts_loses_nothing_that_it_counts() -> None:
    cluster = Priced()
    cluster.minutes(20, completion=10_000)
    cluster.started, cluster.completion = cluster.now.timestamp(), 0
    cluster.minutes(20, completion=10_000)
    assert cluster.cost["completionTokens"] == pytest.approx(400_000, rel=0.15)


def test_engines_that_came_and_went_are_in_the_hour() -> None:
    cluster = Priced(replicas=1)
    cluster.minutes(30)
    cluster.edit(replicas=3)
    cluster.converge()
    cluster.minutes(31)
    assert amount(cluster.cost["perHour"]) == pytest.approx(7.2, rel=0.07)


def test_a_pod_without_a_place_costs_nothing() -> None:
    cluster = Priced(replicas=2)
    waiting = cluster.engine_pods[0]
    waiting["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    cluster.minutes(90)
    assert amount(cluster.cost["perHour"]) == pytest.approx(3.6, rel=0.03)


def test_without_prices_there_is_no_cost_and_an_invalid_spec_keeps_it() -> None:
    cluster = Priced()
    cluster.minutes(3)
    before = cluster.cost
    cluster.service["spec"]["zzz"] = 1
    cluster.minutes(3)
    assert cluster.cost == before
    del cluster.service["spec"]["zzz"]
    del cluster.service["spec"]["pricing"]
    cluster.minutes(1)
    assert cluster.cost == {}


def test_another_price_counts_at_once() -> None:
    cluster = Priced()
    cluster.minutes(10, completion=1_000_000)
    cluster.edit(pricing={"currency": "USD", "perEngineHour": "36"})
    cluster.minutes(2, completion=1_000_000)
    assert cluster.cost["currency"] == "USD"
    assert amount(cluster.cost["perHour"]) == pytest.approx(36, rel=0.03)


def test_a_state_that_somebody_edited_begins_anew() -> None:
    cluster = Priced()
    cluster.minutes(10)
    cluster.service["status"]["cost"]["state"] = "mine"
    cluster.minutes(2)
    assert cluster.cost["window"] == "1m"


@pytest.mark.parametrize(
    ("obj", "due"),
    [
        ({"spec": {}}, False),
        ({"spec": {"pricing": EUR}}, True),
        ({"spec": {"pricing": EUR}, "status": {"cost": 5}}, True),
        ({"spec": {"pricing": EUR}, "status": {"cost": {"observedAt": "never"}}}, True),
        ({"spec": {"pricing": EUR}, "status": {"cost": {"observedAt": "1970-01-01T00:16:00Z"}}}, False),
        ({"spec": {"pricing": EUR}, "status": {"cost": {"observedAt": "1970-01-01T00:15:00Z"}}}, True),
        ({"spec": {"pricing": EUR}, "status": {"cost": {"observedAt": "1970-01-01T01:00:00Z"}}}, True),
        ({}, False),
    ],
)
def test_when_routers_are_asked(obj: dict[str, Any], due: bool) -> None:
    assert is_cost_due(obj, 1000.0) is due
    assert needs_signals(obj) is ("pricing" in obj.get("spec", {}))


AMOUNTS = st.decimals(Decimal("0.01"), Decimal("99999"), places=2)
USAGES = st.builds(
    Usage,
    seconds=st.floats(60, 3600),
    engine_seconds=st.floats(0, 3600 * 1000),
    prompt=st.integers(0, 10**12),
    completion=st.integers(0, 10**12),
)


@given(USAGES, AMOUNTS)
def test_figures_are_what_they_say_to_three_digits(usage: Usage, price: Decimal) -> None:
    found = figures(usage, price, "EUR", {})
    money = Decimal(usage.engine_seconds) / 3600 * price
    near = Decimal("0.006")
    assert Decimal(found["perHour"]) == pytest.approx(money * 3600 / Decimal(usage.seconds), rel=near)
    assert ("perMillionTokens" in found) == (usage.tokens > 0)
    if usage.tokens:
        assert Decimal(found["perMillionTokens"]) * usage.tokens / 1_000_000 == pytest.approx(money, rel=near)
    for name in ("perHour", "perMillionTokens", "engineHours"):
        assert "E" not in found.get(name, "")
        assert len(found.get(name, "").replace(".", "").strip("0")) <= 3
    again = figures(usage, price, "EUR", found)
    assert again == found


@given(USAGES, AMOUNTS, st.floats(0.99, 1.01))
def test_a_figure_stays_until_it_is_another_one(usage: Usage, price: Decimal, factor: float) -> None:
    before = figures(usage, price, "EUR", {})
    moved = Usage(usage.seconds, usage.engine_seconds * factor, usage.prompt, usage.completion)
    assert figures(moved, price, "EUR", before) == before


def test_the_price_of_an_engine() -> None:
    assert price_of_engine(Pricing(currency="EUR", perEngineHour="0.1"), 0) == Decimal("0.1")
    assert price_of_engine(Pricing(currency="EUR", perGpuHour="0.1"), 3) == Decimal("0.3")
