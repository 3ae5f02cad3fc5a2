"""A cost function of the user's decides, until it fails."""

import logging

import pytest
from router_support.policies import LONG, endpoints, policy, send

from blade_router.policies.external import EndpointView, RequestView


def by_name(endpoint: EndpointView, request: RequestView) -> float:
    """A cost function of a user: endpoint 2 unless the prompt is cached elsewhere."""
    return -endpoint.cached_tokens - (endpoint.name == "2") + request.prompt_tokens * 0


def failing(endpoint: EndpointView, request: RequestView) -> float:
    raise RuntimeError("no such thing")


def nothing(endpoint: EndpointView, request: RequestView) -> float:
    return float("nan")


async def test_external_calls_the_cost_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("math.dist", by_name)
    chooser, three = policy("external", cost="math:dist"), endpoints(3)
    choice = chooser.choose(three, LONG)
    assert choice.endpoint is three[2]
    assert choice.reason == "external cost=-1 prefix=0/16"
    send(choice)
    assert chooser.scores(three, LONG)["2"]["cost"] == -1025


@pytest.mark.parametrize("cost", [failing, nothing])
async def test_external_survives_its_function(
    cost: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("math.dist", cost)
    chooser, three = policy("external", cost="math:dist"), endpoints(3)
    with caplog.at_level(logging.ERROR):
        reasons = {chooser.choose(three, LONG).reason.split(" prefix")[0] for _ in range(20)}
    assert reasons == {"external failed auto"}
    assert len(caplog.records) == 1


@pytest.mark.parametrize("cost", ["", "nowhere", "no.such.module:f", "math:nothing", "math:pi"])
def test_external_needs_a_function(cost: str) -> None:
    with pytest.raises(ValueError, match=r"it needs --cost|cannot be imported|is not a function"):
        policy("external", cost=cost)
