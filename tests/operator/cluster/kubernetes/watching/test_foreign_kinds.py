"""LeaderWorkerSets are of other software, which few clusters have: used where it is, and no matter where it is not."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import pytest
from operator_support.apiserver import FakeApiServer, fake_api_server, llm_service
from operator_support.local import until
from operator_support.watching import KEY, Watching, watching

from blade_operator import metrics
from blade_operator.cluster import Rejected
from blade_operator.cluster.kubernetes.api import Api
from blade_operator.cluster.kubernetes.cluster import KubernetesCluster
from blade_operator.cluster.kubernetes.fence import WriteFence
from blade_operator.cluster.kubernetes.kinds import KINDS
from blade_operator.cluster.kubernetes.watching import kopf_settings, sweep
from blade_operator.cluster.kubernetes.watching.scopes import NOT_INSTALLED, Scope
from blade_operator.model.controllers import LEADER_WORKER_SET, LEADER_WORKER_SET_VERSION
from blade_operator.model.objects import Object
from blade_operator.model.observed import Observed
from blade_protocol.labels import MANAGED_BY, MANAGER, NAME

KIND = KINDS[LEADER_WORKER_SET]
EVERYWHERE = f"/apis/{LEADER_WORKER_SET_VERSION}/leaderworkersets"
MISSING = (404, "the server could not find the requested resource")


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with fake_api_server() as server:
        server.put("LLMService", llm_service(0))
        yield server
        assert server.writes == []


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "PATIENCE", 0.3)
    monkeypatch.setattr(kopf_settings, "WATCH_AT_MOST_EVERY", 0.05)


def leader_worker_set() -> Object:
    labels = {MANAGED_BY: MANAGER, NAME: "qwen"}
    return {"metadata": {"name": "qwen-0a-0", "namespace": "team", "uid": "uid-0", "labels": labels}, "spec": {}}


def remove_kind(server: FakeApiServer) -> None:
    server.undiscovered.add(KIND.plural)
    server.refused[EVERYWHERE] = MISSING


async def observed(watched: Watching) -> Observed:
    found = await watched.cluster.observe(KEY)
    assert found is not None
    return found


async def test_a_cluster_without_it_is_served_and_nothing_is_said(
    server: FakeApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    remove_kind(server)
    with caplog.at_level(logging.INFO, "blade_operator"):
        async with watching(server) as watched:
            await watched.synced()
            assert not (await observed(watched)).has_leader_worker_sets
            assert watched.scopes.skipped == {"leaderworkersets": NOT_INSTALLED}
    assert not [record for record in caplog.records if "leaderworkersets" in record.getMessage()]
    assert not any(LEADER_WORKER_SET in labels for labels in metrics.SKIPPED._metrics)


async def test_it_is_used_from_when_it_is_installed_until_it_is_removed(server: FakeApiServer) -> None:
    remove_kind(server)
    async with watching(server) as watched:
        await watched.synced()
        del server.refused[EVERYWHERE]
        server.undiscovered.clear()
        await until(lambda: watched.scopes.has(KIND))
        assert (await observed(watched)).has_leader_worker_sets
        server.put(LEADER_WORKER_SET, leader_worker_set())
        await until(lambda: watched.known(LEADER_WORKER_SET, "qwen-0a-0") is not None)
        assert [obj["kind"] for obj in (await observed(watched)).group_objects] == [LEADER_WORKER_SET]
        remove_kind(server)
        server.unwatchable[EVERYWHERE] = MISSING
        server.reset_watches(LEADER_WORKER_SET)
        await until(lambda: not watched.scopes.has(KIND))
        assert (await observed(watched)).group_objects == ()


async def test_where_it_may_not_be_listed_that_is_reported(server: FakeApiServer) -> None:
    """As after an upgrade of the operator without its rights."""
    server.refused[EVERYWHERE] = (403, "leaderworkersets is forbidden")
    async with watching(server) as watched:
        await watched.synced()
        assert not (await observed(watched)).has_leader_worker_sets
        assert watched.scopes.skipped == {"leaderworkersets": "leaderworkersets is forbidden"}
        assert metrics.SKIPPED.labels("", LEADER_WORKER_SET)._value.get() == 1


async def test_a_namespace_that_is_skipped_whole_does_not_take_it_from_the_others(server: FakeApiServer) -> None:
    server.delete_namespace("gone")
    async with watching(server, "team", "gone") as watched:
        await watched.synced()
        assert watched.scopes.served_namespaces == ["team"]
        assert (await observed(watched)).has_leader_worker_sets


async def test_to_make_one_where_there_is_no_such_kind_is_refused_with_the_way_out(server: FakeApiServer) -> None:
    fence = WriteFence()
    fence.open()
    remove_kind(server)
    server.refused[KIND.path("team")] = MISSING
    obj = {"apiVersion": LEADER_WORKER_SET_VERSION, "kind": LEADER_WORKER_SET, **leader_worker_set()}
    async with Api(server.configuration, fence) as api:
        cluster = KubernetesCluster(api)
        await cluster.scopes.skip({Scope(KIND, None): NOT_INSTALLED})
        with pytest.raises(Rejected, match=r"has no leaderworkersets\.leaderworkerset\.x-k8s\.io: .*groups\.kind"):
            await cluster.apply(obj)
