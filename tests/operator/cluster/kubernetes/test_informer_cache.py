"""What the informer cache keeps of each object, and which changes it reports."""

from __future__ import annotations

import pytest
from operator_support.apiserver import config_map, llm_service, lora_adapter

from blade_operator.cluster.kubernetes.informer_cache import InformerCache
from blade_operator.cluster.kubernetes.trim import trim
from blade_operator.model.objects import Key, Object, Ref
from blade_protocol.labels import DRAINING_SINCE

KEY = Key("team", "qwen")


def _named(obj: Object) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", **obj}


@pytest.fixture
def notified() -> list[Key]:
    return []


@pytest.fixture
def cache(notified: list[Key]) -> InformerCache:
    cache = InformerCache()
    cache.subscribe(notified.append)
    return cache


def test_an_older_state_never_replaces_a_newer_one(cache: InformerCache, notified: list[Key]) -> None:
    cache.put(_named(config_map("a", 7, x="new")))  # the response to our own write ...
    cache.put(_named(config_map("a", 5, x="old")))  # ... comes before the event of an earlier one
    cache.remove(Ref("ConfigMap", "team", "a"), 6)
    cache.keep_only("ConfigMap", None, [], 6)
    assert cache.children(KEY)["ConfigMap"][0]["data"] == {"x": "new"}
    assert notified == [KEY]


def test_a_response_that_comes_after_the_deletion_brings_nothing_back(
    cache: InformerCache, notified: list[Key]
) -> None:
    ref = Ref("ConfigMap", "team", "a")
    cache.put(_named(config_map("a", 3)))
    cache.remove(ref, 6)
    cache.put(_named(config_map("a", 5)))
    assert cache.children(KEY) == {}
    cache.remove(ref, 4)  # what a late list found says nothing about version 5 either
    cache.put(_named(config_map("a", 5)))
    assert cache.children(KEY) == {}
    cache.put(_named(config_map("a", 7)))  # made again
    assert "ConfigMap" in cache.children(KEY)
    cache.keep_only("ConfigMap", None, [], 9)
    cache.put(_named(config_map("a", 8)))
    assert cache.children(KEY) == {}
    assert notified == [KEY] * 4


def test_tombstones_do_not_pile_up(cache: InformerCache) -> None:
    for number in range(5000):
        cache.put(_named(config_map(f"c{number}", 2 * number + 1)))
        cache.remove(Ref("ConfigMap", "team", f"c{number}"), 2 * number + 2)
    assert len(cache._tombstones) < 5000


def test_what_is_equal_when_trimmed_notifies_nobody(cache: InformerCache, notified: list[Key]) -> None:
    cache.put(_named(config_map("a", 1)))
    noisy = config_map("a", 2)
    noisy["metadata"] |= {"managedFields": [{"manager": "kubectl"}], "generation": 5}
    cache.put(_named(noisy))
    assert notified == [KEY]


def test_the_status_of_a_service_is_kept_but_notifies_nobody(cache: InformerCache, notified: list[Key]) -> None:
    cache.put(llm_service(1))
    cache.put(llm_service(2, phase="Ready"))
    assert notified == [KEY]
    assert cache.children(KEY)["LLMService"][0]["status"] == {"phase": "Ready"}
    cache.put(llm_service(3, generation=2, phase="Ready"))
    assert notified == [KEY, KEY]


def test_who_a_service_is_is_known_without_reading_it(cache: InformerCache) -> None:
    service = llm_service(5)
    cache.put(service)
    cached = cache.get(Ref.of(service))
    assert cached is not None
    assert cached.uid == "uid-qwen"


def test_services_that_were_not_reconciled_yet_come_first(cache: InformerCache) -> None:
    cache.put(llm_service(1, name="a", observedGeneration=1))
    cache.put(llm_service(2, name="b", generation=4, observedGeneration=3))
    cache.put(llm_service(3, name="c"))
    cache.put(_named(config_map("left", 4, service="orphan")))
    assert [key.name for key in cache.services()] == ["b", "c", "a"]


def test_an_object_given_to_another_service_leaves_the_first(cache: InformerCache, notified: list[Key]) -> None:
    cache.put(_named(config_map("a", 1)))
    cache.put(_named(config_map("a", 2, service="other")))
    assert cache.children(KEY) == {}
    assert "ConfigMap" in cache.children(Key("team", "other"))
    assert notified == [KEY, KEY, Key("team", "other")]
    unlabelled = config_map("a", 3)
    del unlabelled["metadata"]["labels"]
    cache.put(_named(unlabelled))
    assert cache.children(Key("team", "other")) == {}


def test_a_list_of_one_namespace_says_nothing_about_another(cache: InformerCache) -> None:
    cache.put(_named(config_map("a", 1)))
    cache.keep_only("ConfigMap", "elsewhere", [], 9)
    cache.keep_only("Pod", "team", [], 9)
    assert "ConfigMap" in cache.children(KEY)
    cache.keep_only("ConfigMap", "team", [], 9)
    assert cache.children(KEY) == {}


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
    pod["metadata"]["annotations"][DRAINING_SINCE] = "2026-01-01T00:00:00Z"
    assert trim(pod)["metadata"]["annotations"] == {DRAINING_SINCE: "2026-01-01T00:00:00Z"}
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


def test_history_that_was_rewritten_replaces_what_is_newer(cache: InformerCache, notified: list[Key]) -> None:
    cache.put(_named(config_map("a", 9, x="new")))
    cache.remove(Ref("ConfigMap", "team", "b"), 8)
    assert cache.newest("ConfigMap", "team") == 9
    cache.replace(_named(config_map("a", 5, x="old")))
    assert cache.children(KEY)["ConfigMap"][0]["data"] == {"x": "old"}
    assert cache.newest("ConfigMap", None) == 8
    cache.forget_deleted("ConfigMap", "team", 5)
    cache.put(_named(config_map("b", 6)))
    cache.forget(Ref("ConfigMap", "team", "a"))
    assert [obj["metadata"]["name"] for obj in cache.children(KEY)["ConfigMap"]] == ["b"]
    cache.forget_namespace("team")
    assert cache.children(KEY) == {}
    assert set(notified) == {KEY}


def test_a_lora_adapter_is_of_all_services_of_its_namespace_that_select(
    cache: InformerCache, notified: list[Key]
) -> None:
    for name, namespace, selects in (
        ("a", "team", True),
        ("b", "team", False),
        ("c", "other", True),
        ("d", "team", True),
    ):
        service = llm_service(1, name=name, namespace=namespace)
        cache.put({**service, "spec": {"adapterSelector": {}} if selects else {}})
    cache.put({**llm_service(2, name="d"), "spec": {}})  # it does not any more
    notified.clear()
    cache.put(lora_adapter("law", 3))
    assert notified == [Key("team", "a")]
    cache.put({**lora_adapter("law", 4), "status": {"engines": "1/1"}})
    assert notified == [Key("team", "a")], "its status is the operator's own"
    assert [each["status"] for each in cache.lora_adapters("team", 10)] == [{"engines": "1/1"}]
    cache.put(lora_adapter("law", 5, team="legal"))
    cache.remove(Ref("LoRAAdapter", "team", "law"), 6)
    assert notified == [Key("team", "a")] * 3
    assert cache.lora_adapters("team", 10) == []
    assert {key.name for key in cache.services()} == {"a", "b", "c", "d"}


def test_lora_adapters_are_bounded(cache: InformerCache) -> None:
    for number in range(20):
        cache.put(lora_adapter(f"a{number:02}", number + 1))
    assert [each["metadata"]["name"] for each in cache.lora_adapters("team", 3)] == ["a00", "a01", "a02"]
