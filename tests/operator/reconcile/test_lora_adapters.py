"""LoRAAdapters through reconcile: selected, loaded, reported by their own status, and gone without a trace."""

from __future__ import annotations

from typing import Any

import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model.plan import Plan


@pytest.fixture
def cluster() -> MiniCluster:
    spec = {
        "replicas": 2,
        "engine": {"lora": {"maxGPU": 4}},
        "adapters": [{"name": "sql", "uri": "file:///adapters/sql"}],
        "adapterSelector": {"matchLabels": {"for": "qwen"}},
    }
    running = MiniCluster(service(spec))
    running.add_adapter("law", {"for": "qwen"}, replicas=1)
    running.add_adapter("other")
    running.converge()
    return running


def ready(cluster: MiniCluster, name: str) -> dict[str, Any]:
    [condition] = cluster.lora_adapters[name]["status"]["conditions"]
    return {field: condition[field] for field in ("type", "status", "reason", "message")}


def condition(cluster: MiniCluster) -> tuple[str, str, str]:
    [found] = [each for each in cluster.service["status"]["conditions"] if each["type"] == "AdaptersReady"]
    return found["status"], found["reason"], found["message"]


def having(cluster: MiniCluster, name: str) -> int:
    return sum(name in listed for listed in cluster.adapters.values())


def test_a_selected_one_is_loaded_and_both_objects_say_so(cluster: MiniCluster) -> None:
    assert having(cluster, "law") == 1
    assert having(cluster, "other") == 0
    status = cluster.lora_adapters["law"]["status"]
    assert status["services"] == [{"service": "qwen", "desired": 1, "loaded": 1}]
    assert status["engines"] == "1/1"
    assert ready(cluster, "law") == {
        "type": "Ready",
        "status": "True",
        "reason": "Loaded",
        "message": "it is on 1 engines",
    }
    assert "status" not in cluster.lora_adapters["other"], "nobody selects it"
    assert [each["name"] for each in cluster.service["status"]["adapters"]] == ["sql", "law"]
    assert cluster.service["status"]["adaptersReady"] == "2/2"
    plan = cluster.reconcile()
    assert plan == Plan(requeue_after=plan.requeue_after), "steady state does nothing"


def test_it_comes_changes_and_goes_without_a_restart(cluster: MiniCluster) -> None:
    pods = {pod["metadata"]["name"] for pod in cluster.engine_pods}
    cluster.add_adapter("late", {"for": "qwen"})
    cluster.converge()
    assert having(cluster, "late") == 2
    cluster.lora_adapters["law"]["spec"]["replicas"] = 2
    cluster.lora_adapters["law"]["metadata"]["generation"] = 2
    cluster.converge()
    assert cluster.lora_adapters["law"]["status"]["engines"] == "2/2"
    assert cluster.lora_adapters["law"]["status"]["observedGeneration"] == 2
    del cluster.lora_adapters["law"]
    cluster.converge()
    assert having(cluster, "law") == 0
    assert [each["name"] for each in cluster.service["status"]["adapters"]] == ["sql", "late"]
    assert {pod["metadata"]["name"] for pod in cluster.engine_pods} == pods


def test_one_whose_labels_change_is_unloaded_and_says_nothing_more(cluster: MiniCluster) -> None:
    cluster.lora_adapters["law"]["metadata"]["labels"] = {}
    cluster.converge()
    assert having(cluster, "law") == 0
    assert cluster.lora_adapters["law"]["status"] == {}


def test_a_service_that_selects_no_more_says_nothing_more(cluster: MiniCluster) -> None:
    cluster.edit(adapterSelector=None)
    cluster.converge()
    assert having(cluster, "law") == 0
    assert cluster.lora_adapters["law"]["status"] == {}


def test_one_that_cannot_be_the_services_harms_nothing(cluster: MiniCluster) -> None:
    cluster.add_adapter("hub", {"for": "qwen"}, uri="hf://acme/hub")
    cluster.converge()
    assert having(cluster, "sql") == 2
    assert having(cluster, "law") == 1
    assert condition(cluster)[:2] == ("False", "LeftOut")
    assert condition(cluster)[2].startswith("LoRAAdapter hub is left out: spec.adapters: each uri must be")
    assert ready(cluster, "hub")["reason"] == "LeftOut"
    assert ready(cluster, "hub")["message"].startswith("qwen: spec.adapters: each uri must be")
    [of_service] = [each for each in cluster.service["status"]["conditions"] if each["type"] == "Ready"]
    assert of_service["status"] == "True"


def test_one_that_engines_cannot_load_says_why(cluster: MiniCluster) -> None:
    cluster.broken["/adapters/bad"] = "its rank is 64: raise --max_lora_rank"
    cluster.add_adapter("bad", {"for": "qwen"})
    for _ in range(5):
        cluster.reconcile()
    assert cluster.lora_adapters["bad"]["status"]["engines"] == "0/2"
    assert ready(cluster, "bad")["reason"] == "Loading"
    assert "its rank is 64: raise --max_lora_rank" in ready(cluster, "bad")["message"]
