"""What is kept of each object, and which changes are news."""

from __future__ import annotations

import pytest
from operator_support.apiserver import config_map, llm_service

from blade_operator.cluster.kubernetes.records import Records
from blade_operator.cluster.kubernetes.trim import trim
from blade_operator.objects import Key, Object, Ref

KEY = Key("team", "qwen")


def _named(obj: Object) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", **obj}


@pytest.fixture
def told() -> list[Key]:
    return []


@pytest.fixture
def records(told: list[Key]) -> Records:
    records = Records()
    records.subscribe(told.append)
    return records


def test_an_older_state_never_replaces_a_newer_one(records: Records, told: list[Key]) -> None:
    records.put(_named(config_map("a", 7, x="new")))  # the answer to our own write ...
    records.put(_named(config_map("a", 5, x="old")))  # ... comes before what the watch still has to tell
    records.remove(Ref("ConfigMap", "team", "a"), 6)
    records.keep_only("ConfigMap", None, [], 6)
    assert records.of(KEY)["ConfigMap"][0]["data"] == {"x": "new"}
    assert told == [KEY]


def test_an_answer_that_comes_after_the_news_of_the_deletion_brings_nothing_back(
    records: Records, told: list[Key]
) -> None:
    ref = Ref("ConfigMap", "team", "a")
    records.put(_named(config_map("a", 3)))
    records.remove(ref, 6)
    records.put(_named(config_map("a", 5)))
    assert records.of(KEY) == {}
    records.remove(ref, 4)  # what a late look found says nothing about version 5 either
    records.put(_named(config_map("a", 5)))
    assert records.of(KEY) == {}
    records.put(_named(config_map("a", 7)))  # made again
    assert "ConfigMap" in records.of(KEY)
    records.keep_only("ConfigMap", None, [], 9)
    records.put(_named(config_map("a", 8)))
    assert records.of(KEY) == {}
    assert told == [KEY] * 4


def test_what_went_is_not_remembered_for_ever(records: Records) -> None:
    for number in range(5000):
        records.put(_named(config_map(f"c{number}", 2 * number + 1)))
        records.remove(Ref("ConfigMap", "team", f"c{number}"), 2 * number + 2)
    assert len(records._gone) < 5000


def test_what_is_equal_when_trimmed_is_no_news(records: Records, told: list[Key]) -> None:
    records.put(_named(config_map("a", 1)))
    noisy = config_map("a", 2)
    noisy["metadata"] |= {"managedFields": [{"manager": "kubectl"}], "generation": 5}
    records.put(_named(noisy))
    assert told == [KEY]


def test_the_status_of_a_service_is_kept_but_no_news(records: Records, told: list[Key]) -> None:
    records.put(llm_service(1))
    records.put(llm_service(2, phase="Ready"))
    assert told == [KEY]
    assert records.of(KEY)["LLMService"][0]["status"] == {"phase": "Ready"}
    records.put(llm_service(3, generation=2, phase="Ready"))
    assert told == [KEY, KEY]


def test_services_that_were_not_acted_on_yet_come_first(records: Records) -> None:
    records.put(llm_service(1, name="a", observedGeneration=1))
    records.put(llm_service(2, name="b", generation=4, observedGeneration=3))
    records.put(llm_service(3, name="c"))
    records.put(_named(config_map("left", 4, service="orphan")))
    assert [key.name for key in records.services()] == ["b", "c", "a"]


def test_an_object_given_to_another_service_leaves_the_first(records: Records, told: list[Key]) -> None:
    records.put(_named(config_map("a", 1)))
    records.put(_named(config_map("a", 2, service="other")))
    assert records.of(KEY) == {}
    assert "ConfigMap" in records.of(Key("team", "other"))
    assert told == [KEY, KEY, Key("team", "other")]
    unlabelled = config_map("a", 3)
    del unlabelled["metadata"]["labels"]
    records.put(_named(unlabelled))
    assert records.of(Key("team", "other")) == {}


def test_a_list_of_one_namespace_says_nothing_about_another(records: Records) -> None:
    records.put(_named(config_map("a", 1)))
    records.keep_only("ConfigMap", "elsewhere", [], 9)
    records.keep_only("Pod", "team", [], 9)
    assert "ConfigMap" in records.of(KEY)
    records.keep_only("ConfigMap", "team", [], 9)
    assert records.of(KEY) == {}


def test_of_a_pod_everything_the_status_reads_is_kept_and_little_else() -> None:
    state = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "killed"}}
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team", "annotations": {"cni": "x"}, "managedFields": []},
        "spec": {
            "nodeName": "node1",
            "tolerations": [{}],
            "containers": [{"name": "engine", "ports": [{"name": "internal"}], "env": [{"name": "A"}]}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.0.0.1",
            "hostIP": "10.0.0.9",
            "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": None}],
            "containerStatuses": [{"name": "engine", "started": True, "imageID": "sha256:1", "lastState": state}],
        },
    }
    kept = trim(pod)
    assert kept["metadata"] == {"name": "p", "namespace": "team"}
    assert kept["spec"] == {
        "nodeName": "node1",
        "containers": [{"name": "engine", "ports": [{"name": "internal"}]}],
    }
    assert kept["status"] == {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "engine", "started": True, "lastState": state}],
    }


def test_of_a_deployment_only_what_its_pods_cannot_say_is_kept() -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"}
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "team", "annotations": {"deployment.kubernetes.io/revision": "4"}},
        "spec": {"replicas": 2},
        "status": {"replicas": 2, "conditions": [failure, {"type": "Available", "status": "False"}]},
    }
    kept = trim(deployment)
    assert kept["spec"] == {"replicas": 2}
    assert kept["status"] == {"conditions": [failure]}
    assert kept["metadata"]["annotations"] == {}
