"""Adapters of a service through reconcile: placed, changed, failed and taken away, while base traffic goes on."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model.plan import DrainPod, LoadAdapter, Plan, UnloadAdapter
from blade_operator.reconcile.reconcile import reconcile


def _adapter(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "uri": f"file:///adapters/{name}", **fields}


def _spec(*adapters: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"replicas": 3, "engine": {"lora": {"maxGPU": 4}}, "adapters": list(adapters), **spec}


@pytest.fixture
def cluster() -> MiniCluster:
    running = MiniCluster(service(_spec(_adapter("sql", replicas=2), _adapter("law", replicas=2))))
    running.converge()
    return running


def _pods(cluster: MiniCluster, name: str) -> list[str]:
    return sorted(pod for pod, listed in cluster.adapters.items() if name in listed)


def _entry(cluster: MiniCluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in cluster.service["status"]["adapters"] if each["name"] == name)
    return found


def _condition(cluster: MiniCluster, kind: str) -> dict[str, Any]:
    conditions = cluster.service["status"]["conditions"]
    found: dict[str, Any] = next((each for each in conditions if each["type"] == kind), {})
    return found


def _settle(cluster: MiniCluster, rounds: int = 10) -> Plan:
    for _ in range(rounds):
        plan = cluster.reconcile()
    return plan


def test_each_is_on_k_engines_and_the_status_says_so(cluster: MiniCluster) -> None:
    for name in ("sql", "law"):
        assert len(_pods(cluster, name)) == 2
        entry = _entry(cluster, name)
        assert (entry["desired"], entry["loaded"], entry["bytes"]) == (2, 2, 1000)
        assert sorted(entry["pods"]) == _pods(cluster, name)
    assert _condition(cluster, "AdaptersReady")["status"] == "True"
    plan = cluster.reconcile()
    assert plan == Plan(requeue_after=plan.requeue_after), "steady state does nothing"


def test_events_say_what_was_loaded_and_what_failed(cluster: MiniCluster) -> None:
    found = [(event.type, event.reason, event.message) for event in cluster.events if "Adapter" in event.reason]
    assert found == [("Normal", "AdapterLoaded", "on all engines that are to have it: sql, law")]
    cluster.events.clear()
    cluster.edit(**_spec(*(_adapter(f"a{number}", replicas=1) for number in range(5))))
    cluster.converge()
    named = "on all engines that are to have it: a0, a1, a2 and 2 more"
    assert [event.message for event in cluster.events if event.reason == "AdapterLoaded"] == [named]


def test_the_set_changes_without_a_new_revision(cluster: MiniCluster) -> None:
    pods = {pod["metadata"]["name"] for pod in cluster.engine_pods}
    cluster.edit(**_spec(_adapter("law", replicas=2), _adapter("new")))
    cluster.converge()
    assert _pods(cluster, "sql") == []
    assert len(_pods(cluster, "new")) == 3
    assert {pod["metadata"]["name"] for pod in cluster.engine_pods} == pods
    assert [each["name"] for each in cluster.service["status"]["adapters"]] == ["law", "new"]


def test_an_engine_that_started_anew_gets_its_adapters_again(cluster: MiniCluster) -> None:
    pod = _pods(cluster, "sql")[0]
    before = _pods(cluster, "sql"), _pods(cluster, "law")
    cluster.adapters[pod].clear()
    plan = cluster.plan()
    assert any(isinstance(action, LoadAdapter) for action in plan.actions)
    _settle(cluster)
    assert len(_pods(cluster, "sql")) == len(_pods(cluster, "law")) == 2
    assert set(before[0]) & set(_pods(cluster, "sql")), "the other copy stays"


def test_one_missed_query_moves_nothing(cluster: MiniCluster) -> None:
    pod = _pods(cluster, "sql")[0]
    state, listed = cluster.engines.pop(pod), cluster.adapters.pop(pod)
    plan = cluster.reconcile()
    assert not [action for action in plan.actions if isinstance(action, LoadAdapter | UnloadAdapter)]
    assert _entry(cluster, "sql")["loaded"] == 2
    assert _condition(cluster, "AdaptersReady")["status"] == "True"
    cluster.engines[pod], cluster.adapters[pod] = state, listed
    assert not cluster.reconcile().actions


def test_a_broken_adapter_is_reported_in_the_engines_words_and_base_traffic_goes_on(cluster: MiniCluster) -> None:
    cluster.broken["/adapters/bad"] = "rank 64 is more than --max_lora_rank 16; raise it"
    cluster.edit(**_spec(_adapter("sql", replicas=2), _adapter("law", replicas=2), _adapter("bad", replicas=1)))
    _settle(cluster)
    assert _condition(cluster, "Ready")["status"] == "True"
    ready = _condition(cluster, "AdaptersReady")
    assert ready["status"] == "False"
    assert "rank 64 is more than --max_lora_rank 16" in ready["message"]
    assert "rank 64 is more than --max_lora_rank 16" in _entry(cluster, "bad")["reason"]
    assert (_entry(cluster, "bad")["loaded"], _entry(cluster, "sql")["loaded"]) == (0, 2)
    cluster.broken.clear()
    _settle(cluster)
    assert _condition(cluster, "AdaptersReady")["status"] == "True"


def test_a_broken_edit_keeps_the_copies_that_serve(cluster: MiniCluster) -> None:
    cluster.broken["/adapters/other"] = "tensor x has NaN"
    broken = {"name": "sql", "uri": "file:///adapters/other", "replicas": 2}
    cluster.edit(**_spec(broken, _adapter("law", replicas=2)))
    _settle(cluster)
    assert {cluster.adapters[pod]["sql"].path for pod in _pods(cluster, "sql")} == {"/adapters/sql"}
    assert "tensor x has NaN" in _entry(cluster, "sql")["reason"]
    cluster.edit(**_spec(_adapter("sql", replicas=2), _adapter("law", replicas=2)))
    _settle(cluster)
    assert _condition(cluster, "AdaptersReady")["status"] == "True"


def test_an_invalid_spec_changes_no_adapter(cluster: MiniCluster) -> None:
    before = {pod: dict(listed) for pod, listed in cluster.adapters.items()}
    cluster.edit(**_spec(_adapter("sql", replicas=0)))
    plan = _settle(cluster)
    assert (plan.actions, cluster.adapters) == ([], before)
    assert _entry(cluster, "sql")["loaded"] == 2


def test_only_what_the_operator_loaded_is_unloaded(cluster: MiniCluster) -> None:
    pod = _pods(cluster, "sql")[0]
    own = msgspec.structs.replace(cluster.adapters[pod]["sql"], name="own", path="/home/own")
    cluster.adapters[pod]["own"] = own
    cluster.edit(adapters=[])
    _settle(cluster)
    assert cluster.adapters[pod] == {"own": own}
    assert not _pods(cluster, "sql")


def test_a_refusal_is_reported_in_the_engines_words(cluster: MiniCluster) -> None:
    cluster.adapters[_pods(cluster, "sql")[0]].clear()
    observed = cluster.observed()
    refusals = {(pod, "sql"): "all adapters in host memory are pinned" for pod in cluster.adapters}
    plan = reconcile(dataclasses.replace(observed, refused_adapters=refusals), cluster.now, cluster.defaults)
    assert plan.status is not None
    entry = next(each for each in plan.status["adapters"] if each["name"] == "sql")
    assert "all adapters in host memory are pinned" in entry["reason"]


@pytest.mark.parametrize("broken", [False, True])
def test_an_engine_drains_once_others_have_what_only_it_had(broken: bool) -> None:
    cluster = MiniCluster(service(_spec(_adapter("sql", replicas=1))))
    cluster.converge()
    [last] = _pods(cluster, "sql")
    for pod, state in cluster.engines.items():
        cluster.engines[pod] = msgspec.structs.replace(state, running=0 if pod == last else 5)
    if broken:
        cluster.broken["/adapters/sql"] = "the disk is away"
    cluster.edit(replicas=2)
    cluster.reconcile()
    plans = [cluster.reconcile() for _ in range(8)]
    drained = [at for at, plan in enumerate(plans) if DrainPod(last) in plan.actions]
    assert any(isinstance(action, LoadAdapter) for action in plans[0].actions)
    assert drained[0] == (5 if broken else 1), "not before another one has it, and not never"
