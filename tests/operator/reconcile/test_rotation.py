"""A new root key: the Secret follows it, engines and routers follow the Secret, and no router meets only refusals."""

from __future__ import annotations

import base64
import dataclasses
import random
from datetime import timedelta

import pytest
from operator_support.mini_cluster import MiniCluster, engine_state, service

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object, Ref
from blade_operator.model.plan import Plan
from blade_operator.reconcile.rotation import ROUTERS_WAIT_SECONDS, SETTLE_SECONDS
from blade_operator.render import Defaults
from blade_operator.render.internal_token import internal_token
from blade_protocol.internal_token import ROTATION_SECONDS

OLD = Defaults(engine_image="engine:1", router_image="operator:1", internal_key=b"k" * 32)
NEW = dataclasses.replace(OLD, internal_key=b"x" * 32)
KUBELET_SECONDS = 90
"""Until a kubelet has updated what is mounted, at the latest."""


def token(defaults: Defaults) -> str:
    return internal_token(defaults.internal_key, "team", "qwen", "0f0f")


class Tokens:
    """What the processes in the pods know: the token that was mounted when they started, and what kubelets update."""

    def __init__(self, cluster: MiniCluster, chance: random.Random) -> None:
        self.cluster = cluster
        self._chance = chance
        self._known: dict[str, dict[str, float]] = {}
        """By pod: each token, and when it was last the one in the pod's file."""
        self._updates: dict[str, float] = {}

    @property
    def mounted(self) -> str:
        """What a pod that starts now mounts."""
        [secret] = [obj for ref, obj in self.cluster.objects.items() if ref.kind == "Secret"]
        return base64.b64decode(secret["data"]["token"]).decode()

    def turn(self) -> None:
        """Kubelets and processes do what is due; the operator's queries are answered."""
        now = self.cluster.now.timestamp()
        for pod in self.cluster.pods:
            name = pod["metadata"]["name"]
            known = self._known.setdefault(name, {self.mounted: now})
            current = max(known, key=lambda each: known[each])
            known[current] = now
            if current == self.mounted:
                self._updates.pop(name, None)
            elif now >= self._updates.setdefault(name, now + self._chance.uniform(1, KUBELET_SECONDS)):
                known[self.mounted] = now + 0.5
        self.cluster.unauthorized.clear()
        for pod in self.cluster.engine_pods:
            name = pod["metadata"]["name"]
            if token(self.cluster.defaults) in self.accepted(name):
                if podutil.is_ready(pod):
                    self.cluster.engines.setdefault(name, engine_state(pod))
            else:
                self.cluster.unauthorized.add(name)
                self.cluster.engines.pop(name, None)

    def accepted(self, name: str) -> set[str]:
        """By an engine, and what a router sends: the token, and the one before for a while."""
        now = self.cluster.now.timestamp()
        return {each for each, at in self._known[name].items() if now - at < ROTATION_SECONDS}

    def refused(self) -> list[str]:
        """Routers that serve, and find no engine."""

        def serving(role: str) -> list[str]:
            pods = [pod for pod in self.cluster.pods if podutil.role(pod) == role and podutil.is_ready(pod)]
            return [pod["metadata"]["name"] for pod in pods]

        engines = [self.accepted(name) for name in serving("engine")]
        return [name for name in serving("router") if not any(self.accepted(name) & each for each in engines)]


@pytest.fixture
def cluster() -> MiniCluster:
    running = MiniCluster(service({"replicas": 2, "router": {"replicas": 2}}), OLD)
    running.converge()
    return running


def conditions(cluster: MiniCluster) -> dict[str, Object]:
    return {entry["type"]: entry for entry in cluster.service["status"]["conditions"]}


def refuse(cluster: MiniCluster) -> None:
    """Every engine refuses the operator's token."""
    cluster.unauthorized = {pod["metadata"]["name"] for pod in cluster.engine_pods}
    cluster.engines.clear()


def step(cluster: MiniCluster, tokens: Tokens) -> None:
    cluster.reconcile()
    cluster.run_controllers()
    cluster.remove_terminating_pods()
    tokens.turn()
    assert tokens.refused() == []
    for pod in cluster.pods:
        if not podutil.is_ready(pod):
            cluster.become_ready(pod)
    tokens.turn()
    assert tokens.refused() == []


@pytest.mark.parametrize("release", ["the same", "another"])
@pytest.mark.parametrize("seed", range(4))
def test_every_engine_follows_without_a_restart_and_every_router_finds_one(
    cluster: MiniCluster, seed: int, release: str
) -> None:
    chance = random.Random(seed)
    tokens = Tokens(cluster, chance)
    tokens.turn()
    engines = [pod["metadata"]["name"] for pod in cluster.engine_pods]
    cluster.defaults = NEW if release == "the same" else dataclasses.replace(NEW, router_image="operator:2")
    tokens.turn()
    for _ in range(150):
        cluster.now += timedelta(seconds=chance.uniform(0, 3))
        step(cluster, tokens)
    assert tokens.mounted == token(NEW)
    assert all(token(NEW) in tokens.accepted(name) for name in engines)
    assert [pod["metadata"]["name"] for pod in cluster.engine_pods] == engines
    routers = [pod for pod in cluster.pods if podutil.role(pod) == "router"]
    images = {pod["spec"]["containers"][0]["image"] for pod in routers}
    assert images == {cluster.defaults.router_image}
    assert conditions(cluster)["Degraded"]["status"] == "False"
    plan = cluster.plan()
    assert plan == Plan(requeue_after=plan.requeue_after)


def test_the_secret_waits_for_routers_that_start_and_routers_for_engines_that_refuse(cluster: MiniCluster) -> None:
    tokens = Tokens(cluster, random.Random(0))
    tokens.turn()
    cluster.defaults = NEW
    engines = {pod["metadata"]["name"] for pod in cluster.engine_pods}
    router = next(pod for pod in cluster.pods if podutil.role(pod) == "router")
    router["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    cluster.unauthorized = engines
    cluster.engines.clear()
    assert cluster.reconcile().replace == []
    said = conditions(cluster)["Degraded"]
    assert (said["reason"], conditions(cluster)["Ready"]["status"]) == ("InternalTokenRefused", "True")
    assert "replaces it once no router starts" in said["message"]
    assert "routers stay as they are" in said["message"]
    cluster.become_ready(router)
    [secret] = cluster.reconcile().replace
    assert (secret["kind"], tokens.mounted) == ("Secret", token(NEW))
    cluster.defaults = dataclasses.replace(NEW, router_image="operator:2")
    assert [obj["kind"] for obj in cluster.reconcile().apply] == []
    cluster.edit(replicas=3)
    assert [obj["kind"] for obj in cluster.reconcile().apply] == ["Deployment"], "engines are scaled all the same"
    cluster.unauthorized = {*list(engines)[:1]}
    other = next(pod for pod in cluster.engine_pods if pod["metadata"]["name"] not in cluster.unauthorized)
    cluster.engines[other["metadata"]["name"]] = engine_state(other)
    applied = [obj["metadata"]["name"] for obj in cluster.reconcile().apply if obj["kind"] == "Deployment"]
    assert applied == ["qwen-router"], "one engine accepts the new token"


def test_a_rollout_of_routers_that_failed_keeps_no_secret_waiting(cluster: MiniCluster) -> None:
    cluster.defaults = NEW
    for pod in cluster.pods:
        pod["metadata"]["creationTimestamp"] = cluster.now.isoformat()
    stuck = next(pod for pod in cluster.pods if podutil.role(pod) == "router")
    cluster.terminate_container(stuck, "router", 1)
    cluster.unauthorized = {pod["metadata"]["name"] for pod in cluster.engine_pods}
    cluster.engines.clear()
    assert cluster.reconcile().replace == []
    cluster.now += timedelta(seconds=SETTLE_SECONDS)
    assert len(cluster.reconcile().replace) == 1


def test_a_router_that_cannot_be_made_keeps_the_secret_waiting_only_for_a_while(cluster: MiniCluster) -> None:
    cluster.defaults = NEW
    missing = next(pod for pod in cluster.pods if podutil.role(pod) == "router")
    cluster.pods.remove(missing)  # a quota refuses it
    for pod in cluster.pods:
        pod["metadata"]["creationTimestamp"] = cluster.now.isoformat()
    refuse(cluster)
    assert cluster.reconcile().replace == []
    cluster.now += timedelta(seconds=SETTLE_SECONDS)
    assert len(cluster.reconcile().replace) == 1


def applied_deployments(cluster: MiniCluster) -> list[str]:
    return [obj["metadata"]["name"] for obj in cluster.reconcile().apply if obj["kind"] == "Deployment"]


def test_routers_wait_for_no_secret_that_the_cluster_refuses_to_replace(cluster: MiniCluster) -> None:
    cluster.defaults = dataclasses.replace(NEW, router_image="operator:2")
    refuse(cluster)
    plan = cluster.plan()
    [secret] = plan.replace
    assert plan.apply == []
    cluster.rejected[Ref.of(secret)] = "field is immutable when `immutable` is set"
    assert applied_deployments(cluster) == ["qwen-router"]


def test_routers_wait_for_engines_only_for_a_while(cluster: MiniCluster) -> None:
    cluster.defaults = dataclasses.replace(NEW, router_image="operator:2")
    refuse(cluster)
    assert applied_deployments(cluster) == []
    assert conditions(cluster)["InternalTokenRefused"]["status"] == "True"
    since = cluster.now
    cluster.now = since + timedelta(seconds=ROUTERS_WAIT_SECONDS - 1)
    assert applied_deployments(cluster) == []
    assert applied_deployments(cluster) == ["qwen-router"]


def test_each_new_key_makes_routers_wait_anew(cluster: MiniCluster) -> None:
    refuse(cluster)
    cluster.reconcile()
    cluster.unauthorized.clear()
    cluster.reconcile()
    assert "InternalTokenRefused" not in conditions(cluster)
    cluster.now += timedelta(seconds=2 * ROUTERS_WAIT_SECONDS)
    cluster.defaults = dataclasses.replace(NEW, router_image="operator:2")
    refuse(cluster)
    assert [applied_deployments(cluster) for _ in range(2)] == [[], []]


def test_where_engines_serve_routers_without_a_token_routers_do_not_wait() -> None:
    cluster = MiniCluster(service({"security": {"engineToken": False}}), OLD)
    cluster.converge()
    cluster.defaults = dataclasses.replace(NEW, router_image="operator:2")
    cluster.unauthorized = {pod["metadata"]["name"] for pod in cluster.engine_pods}
    cluster.engines.clear()
    applied = [obj["metadata"]["name"] for obj in cluster.reconcile().apply if obj["kind"] == "Deployment"]
    assert applied == ["qwen-router"]


def test_the_engine_of_an_earlier_service_says_nothing_about_the_secret(cluster: MiniCluster) -> None:
    [earlier, *_] = cluster.engine_pods
    cluster.unauthorized = {earlier["metadata"]["name"]}
    earlier["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert cluster.reconcile().replace == []
    del earlier["metadata"]["deletionTimestamp"]
    earlier["metadata"]["creationTimestamp"] = "2025-12-31T00:00:00Z"
    assert cluster.reconcile().replace == []


def test_what_is_there_is_replaced_only_when_engines_refuse(cluster: MiniCluster) -> None:
    cluster.defaults = NEW
    cluster.edit(replicas=3)
    plan = cluster.reconcile()
    assert plan.replace == []
    assert [obj["kind"] for obj in plan.apply] == ["Secret", "Deployment"]  # made where it is missing
    [secret] = [obj for ref, obj in cluster.objects.items() if ref.kind == "Secret"]
    assert base64.b64decode(secret["data"]["token"]).decode() == token(OLD)
    assert Ref.of(secret).name.startswith("qwen-internal-")
