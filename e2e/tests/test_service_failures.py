"""Things die under load: an engine, an engine's pod, a router, the operator. Whatever could be saved is."""

from __future__ import annotations

import time

import pytest

from e2e.cluster.base import Cluster
from e2e.support.chart import NAMESPACE as OPERATOR
from e2e.support.load import Load, LongStream
from e2e.support.node import kill_container
from e2e.support.service import Object, Service, is_ready, names

LONG = 1000
"""Tokens: several seconds."""


@pytest.fixture
def two(demo: Service) -> Service:
    """The shared service with two engines."""
    demo.kubectl("scale", "llm", "demo", "--replicas=2")
    demo.wait_until_converged(2)
    return demo


def long_streams(url: str, pods: list[Object]) -> list[LongStream]:
    """Streams that have begun, at least one on each pod."""
    streams: list[LongStream] = []
    while not all(of(streams, pod) for pod in pods):
        assert len(streams) < 12, [stream.result.endpoint for stream in streams]
        streams += [stream.first() for stream in (LongStream(url, LONG), LongStream(url, LONG))]
    return streams


def of(streams: list[LongStream], pod: Object) -> list[LongStream]:
    return [stream for stream in streams if stream.result.endpoint == pod["metadata"]["name"]]


def restarts(pod: Object) -> int:
    return sum(int(status["restartCount"]) for status in pod["status"]["containerStatuses"])


def test_an_engine_killed_costs_nothing(two: Service) -> None:
    with two.reach() as url, Load(url) as load:
        target, other = two.pods("engine")
        streams = long_streams(url, [target, other])
        kill_container(two.cluster, target, "engine")
        load.more()
        two.until(lambda: two.status()["readyReplicas"] == 1, "seen with one engine")
        assert two.condition("Ready")["status"] == "True"
        two.wait_until_converged(2)
        load.more()
    # The other engine went on with the streams whose beginning the killed engine had sent: the same text, counted once.
    assert {(stream.wait().outcome, stream.result.tokens) for stream in streams} == {("ok", LONG)}
    assert len({stream.result.text for stream in streams}) == 1
    assert load.bad == []

    [failure] = two.status()["failures"]
    assert (failure["pod"], failure["container"]) == (target["metadata"]["name"], "engine")
    assert (failure["exitCode"], failure["restarts"]) == (137, 1)


def test_an_engine_pod_deleted_finishes_what_it_has(two: Service) -> None:
    with two.reach() as url, Load(url) as load:
        target = two.pods("engine")[0]
        name = target["metadata"]["name"]
        streams = long_streams(url, two.pods("engine"))
        two.kubectl("delete", "pod", name, "--wait=false")
        two.until(lambda: two.status().get("drainingReplicas", 0) == 1, "draining")
        assert any(stream.open for stream in of(streams, target))
        assert {(stream.wait().outcome, stream.result.tokens) for stream in streams} == {("ok", LONG)}
        two.until(lambda: name not in names(two.pods("engine")), "rid of the pod")
        two.wait_until_converged(2)
        load.more()
    assert len({stream.result.text for stream in streams}) == 1
    assert load.bad == []


def test_a_router_killed_costs_only_what_it_had_in_hand(demo: Service) -> None:
    # Clients repeat requests that got no response, as OpenAI's do; the other router takes them.
    with demo.reach() as url, Load(url, retries=5) as load:
        load.more()
        target = demo.pods("router")[0]
        killed = time.monotonic()
        kill_container(demo.cluster, target, "router")
        load.more()

        def back() -> bool:
            now = demo.json("get", "pod", target["metadata"]["name"])
            return restarts(now) == restarts(target) + 1 and is_ready(now)

        demo.until(back, "with its router back")
        demo.wait_until_converged(1)
        load.more()
    for result in load.bad:
        # A stream that had begun; only its router could have gone on with it.
        assert (result.outcome, result.stream) == ("broken", True), result
        assert result.first < killed + 1.0, result
        assert result.ended > killed, result
    assert len(load.bad) <= 3  # its users


def test_both_operators_killed_cost_nothing_and_come_back(demo: Service) -> None:
    def operators() -> list[Object]:
        found = demo.cluster.json("-n", OPERATOR, "get", "pods", "-l", "app.kubernetes.io/name=bladellm-operator")
        return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]

    before = {pod["metadata"]["name"]: restarts(pod) for pod in operators()}
    assert len(before) == 2
    with demo.reach() as url, Load(url) as load:
        for pod in operators():
            kill_container(demo.cluster, pod, "operator")
        # Requested while nobody listens.
        demo.kubectl("scale", "llm", "demo", "--replicas=2")
        load.more()
        demo.wait_until_converged(2)
        demo.until(lambda: all(map(is_ready, operators())), "with operators ready")
        assert {pod["metadata"]["name"]: restarts(pod) - 1 for pod in operators()} == before
        load.more()
    assert load.bad == []


def leader(cluster: Cluster) -> str:
    return str(cluster.json("-n", OPERATOR, "get", "lease", "bladellm-operator")["spec"]["holderIdentity"])


def test_the_leading_operator_pod_deleted_hands_over(demo: Service) -> None:
    before = leader(demo.cluster)
    demo.cluster.kubectl("-n", OPERATOR, "delete", "pod", before.partition("_")[0], "--wait=false")
    demo.kubectl("patch", "llm", "demo", "--type=merge", "-p", '{"spec":{"router":{"replicas":1}}}')
    demo.wait_until_converged(1)
    assert leader(demo.cluster) != before
    demo.cluster.kubectl("-n", OPERATOR, "rollout", "status", "deployment", "--timeout=90s")
