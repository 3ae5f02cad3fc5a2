"""Reconcile on a fake cluster: first install, changes, rollback, drift, invalid specs."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object, Ref
from blade_operator.render import Defaults
from blade_protocol.labels import RESTARTED_AT, REVISION

WITH_KEY = Defaults(engine_image="engine:1", router_image="operator:1", internal_key=b"k" * 32)


@pytest.fixture
def cluster() -> MiniCluster:
    running = MiniCluster(service({"replicas": 2}))
    running.converge()
    return running


def deployments(cluster: MiniCluster) -> dict[str, int]:
    return {
        ref.name: obj["spec"]["replicas"]
        for ref, obj in cluster.objects.items()
        if ref.kind == "Deployment" and "-engine-" in ref.name
    }


def history(cluster: MiniCluster) -> dict[str, int]:
    return {ref.name: obj["revision"] for ref, obj in cluster.objects.items() if ref.kind == "ControllerRevision"}


def test_the_first_reconcile_applies_everything_and_each_controller_revision_precedes_its_deployment() -> None:
    cluster = MiniCluster(service({"replicas": 2}))
    plan = cluster.reconcile()
    made = [(obj["kind"], obj["metadata"]["name"]) for obj in plan.apply]
    revision = cluster.service["status"]["revision"]["current"]
    assert {name for kind, name in made if kind == "Deployment"} == {f"qwen-engine-{revision}", "qwen-router"}
    assert made.index(("ControllerRevision", f"qwen-engine-{revision}")) < made.index(
        ("Deployment", f"qwen-engine-{revision}")
    )
    assert {kind for kind, _ in made} == {
        "ConfigMap", "ControllerRevision", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Role",
        "RoleBinding", "Service", "ServiceAccount",
    }  # fmt: skip
    assert plan.delete == []
    for obj in plan.apply:
        [owner] = obj["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("LLMService", "qwen", "0f0f")
    assert [event.reason for event in plan.events] == ["NewRevision", "ScaledUp"]


def test_a_second_reconcile_plans_nothing_but_the_status() -> None:
    cluster = MiniCluster(service())
    cluster.reconcile()
    plan = cluster.plan()
    assert (plan.apply, plan.delete, plan.status, plan.events) == ([], [], None, [])


def test_an_operator_killed_after_any_write_ends_in_the_same_state(cluster: MiniCluster) -> None:
    wanted = {ref: obj["spec"] for ref, obj in cluster.objects.items() if "spec" in obj}
    writes = len(MiniCluster(service({"replicas": 2})).plan().apply)
    for done in range(writes):
        killed = MiniCluster(service({"replicas": 2}))
        for obj in killed.plan().apply[:done]:
            killed.objects[Ref.of(obj)] = killed._as_server(obj)
        killed.converge()
        assert {ref: obj["spec"] for ref, obj in killed.objects.items() if "spec" in obj} == wanted


def test_scaling_changes_only_the_size(cluster: MiniCluster) -> None:
    before = history(cluster)
    cluster.edit(replicas=3)
    plan = cluster.reconcile()
    assert [(obj["kind"], obj["spec"]["replicas"]) for obj in plan.apply] == [("Deployment", 3)]
    assert [event.message for event in plan.events if event.reason == "ScaledUp"] == [
        f"scaled up revision {cluster.service['status']['revision']['current']} from 2 to 3"
    ]
    cluster.converge()
    assert history(cluster) == before


def test_a_change_replaces_engine_by_engine_and_keeps_the_old_record(cluster: MiniCluster) -> None:
    old = cluster.service["status"]["revision"]["current"]
    cluster.edit(engine={"maxNumSeqs": 8})
    lowest, highest = 99, 0
    for _ in range(30):
        cluster.reconcile()
        cluster.run_controllers()
        lowest = min(lowest, sum(map(podutil.is_ready, cluster.engine_pods)))
        highest = max(highest, len(cluster.engine_pods))
        cluster.remove_terminating_pods()
        for pod in cluster.pods:
            cluster.become_ready(pod)
    assert (lowest, highest) == (2, 3)
    new = cluster.service["status"]["revision"]["current"]
    assert deployments(cluster) == {f"qwen-engine-{new}": 2}
    assert history(cluster) == {f"qwen-engine-{old}": 1, f"qwen-engine-{new}": 2}
    assert cluster.service["status"]["revision"] == {
        "current": new, "previous": old, "updating": False, "outdated": False, "stable": new,
    }  # fmt: skip
    assert {pod["metadata"]["labels"][REVISION] for pod in cluster.engine_pods} == {new}


def test_going_back_reuses_the_earlier_revision(cluster: MiniCluster) -> None:
    first = copy.deepcopy(cluster.service["spec"]["engine"])
    old = cluster.service["status"]["revision"]["current"]
    cluster.edit(engine={"maxNumSeqs": 8})
    cluster.converge()
    new = cluster.service["status"]["revision"]["current"]
    # Even an operator that renders otherwise takes the very template that ran then.
    cluster.defaults = Defaults(engine_image="engine:2", router_image="operator:1")
    cluster.edit(engine=first)
    cluster.converge()
    assert deployments(cluster) == {f"qwen-engine-{old}": 2}
    assert history(cluster) == {f"qwen-engine-{new}": 2, f"qwen-engine-{old}": 3}
    assert cluster.engine_pods[0]["spec"]["containers"][0]["image"] == "engine:1"


def test_a_broken_revision_never_takes_the_old_one_down_and_going_back_removes_it(cluster: MiniCluster) -> None:
    first = copy.deepcopy(cluster.service["spec"]["engine"])
    old = cluster.service["status"]["revision"]["current"]
    cluster.edit(engine={"extraArgs": ["--no_such_flag"]})
    for _ in range(10):
        cluster.reconcile()
        cluster.run_controllers()
        cluster.remove_terminating_pods()
        for pod in cluster.engine_pods:
            if podutil.revision(pod) != old:
                cluster.terminate_container(pod, "engine", 2, "blade_llm_server: unknown flag --no_such_flag")
    bad = cluster.service["status"]["revision"]["current"]
    assert deployments(cluster) == {f"qwen-engine-{old}": 2, f"qwen-engine-{bad}": 1}
    status = cluster.service["status"]
    conditions = {condition["type"]: condition for condition in status["conditions"]}
    # The earlier engines serve, but not what the spec says.
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "CrashLoopBackOff")
    assert conditions["Ready"]["message"].startswith(f"revision {bad} does not become ready, an earlier one serves")
    assert conditions["WorkersReady"]["status"] == conditions["RouterReady"]["status"] == "True"
    assert (conditions["Stalled"]["status"], conditions["Reconciling"]["status"]) == ("True", "False")
    assert (conditions["Progressing"]["status"], conditions["Progressing"]["reason"]) == ("False", "Stalled")
    assert status["phase"] == "Degraded"
    assert status["failures"][0]["lastLog"] == "blade_llm_server: unknown flag --no_such_flag"
    cluster.edit(engine=first)
    cluster.converge()
    assert deployments(cluster) == {f"qwen-engine-{old}": 2}


def test_a_new_operator_release_restarts_no_engine_until_requested(cluster: MiniCluster) -> None:
    before = deployments(cluster)
    cluster.defaults = Defaults(engine_image="engine:2", router_image="operator:1")
    plan = cluster.reconcile()
    assert plan.apply == []
    assert cluster.service["status"]["revision"]["outdated"] is True
    cluster.converge()
    assert deployments(cluster) == before
    cluster.service["metadata"].setdefault("annotations", {})[RESTARTED_AT] = "2026-01-02"
    cluster.converge()
    assert cluster.service["status"]["revision"]["outdated"] is False
    assert {pod["spec"]["containers"][0]["image"] for pod in cluster.engine_pods} == {"engine:2"}


@pytest.mark.parametrize(
    ("kind", "name", "spoil"),
    [
        ("Deployment", "qwen-router", lambda obj: obj["spec"].update(replicas=7)),
        ("Service", "qwen-engine", lambda obj: obj["spec"]["selector"].clear()),
        ("ConfigMap", "qwen-router", lambda obj: obj["data"].update({"router.json": "{}"})),
        ("ServiceAccount", "qwen-engine", lambda obj: obj.pop("automountServiceAccountToken")),
        ("PodDisruptionBudget", "qwen-engine", lambda obj: obj["spec"].update(maxUnavailable=5)),
    ],
)
def test_what_someone_changed_by_hand_is_put_right(cluster: MiniCluster, kind: str, name: str, spoil) -> None:  # type: ignore[no-untyped-def]
    ref = Ref(kind, "team", name)
    before = copy.deepcopy(cluster.objects[ref])
    spoil(cluster.objects[ref])
    assert [Ref.of(obj) for obj in cluster.reconcile().apply] == [ref]
    after = cluster.objects[ref]
    assert {k: v for k, v in after.items() if k != "metadata"} == {k: v for k, v in before.items() if k != "metadata"}


def test_items_that_someone_added_to_the_operators_lists_are_removed(cluster: MiniCluster) -> None:
    [name] = deployments(cluster)
    engine, router = Ref("Deployment", "team", name), Ref("Deployment", "team", "qwen-router")
    before = copy.deepcopy(cluster.objects)
    pod = cluster.objects[engine]["spec"]["template"]["spec"]
    pod["containers"].insert(0, {"name": "sidecar", "image": "x"})
    pod["containers"][1]["env"].append({"name": "LD_PRELOAD", "value": "/x.so"})
    cluster.objects[router]["spec"]["template"]["spec"]["volumes"].append({"name": "x", "emptyDir": {}})
    binding = Ref("RoleBinding", "team", "qwen-router")
    cluster.objects[binding]["subjects"].append({"kind": "User", "name": "mallory"})
    plan = cluster.reconcile()
    assert [Ref.of(obj) for obj in plan.apply] == [binding]  # its list is replaced as a whole
    assert sorted(prune.ref.name for prune in plan.prune) == [name, "qwen-router"]
    assert cluster.reconcile().prune == []
    after = {ref: {**obj, "metadata": {}} for ref, obj in cluster.objects.items()}
    assert after == {ref: {**obj, "metadata": {}} for ref, obj in before.items()}


def test_a_changed_engine_deployment_is_put_right_and_a_deleted_one_made_again(cluster: MiniCluster) -> None:
    [name] = deployments(cluster)
    ref = Ref("Deployment", "team", name)
    cluster.objects[ref]["spec"]["template"]["spec"]["containers"][0]["args"].append("--dtype=float16")
    assert [Ref.of(obj) for obj in cluster.reconcile().apply] == [ref]
    del cluster.objects[ref]
    assert [Ref.of(obj) for obj in cluster.reconcile().apply] == [ref]
    cluster.converge()
    assert deployments(cluster) == {name: 2}


def test_an_old_revision_without_its_record_is_still_scaled_down(cluster: MiniCluster) -> None:
    cluster.edit(engine={"maxNumSeqs": 8})
    cluster.reconcile()
    [old, _] = history(cluster)
    del cluster.objects[Ref("ControllerRevision", "team", old)]
    cluster.converge()
    assert list(deployments(cluster).values()) == [2]
    assert old not in deployments(cluster)


def test_history_is_cut_at_the_limit() -> None:
    cluster = MiniCluster(service({"rollout": {"revisionHistoryLimit": 2}}))
    for size in range(1, 6):
        cluster.edit(engine={"maxNumSeqs": size})
        cluster.converge()
    assert sorted(history(cluster).values()) == [3, 4, 5]
    cluster.edit(rollout={"revisionHistoryLimit": 0})
    cluster.converge()
    assert sorted(history(cluster).values()) == [5]


def test_an_invalid_spec_in_the_store_changes_nothing_but_the_status(cluster: MiniCluster) -> None:
    objects = copy.deepcopy(cluster.objects)
    cluster.service["spec"]["engine"]["maxNumSeq"] = 4
    cluster.service["metadata"]["generation"] += 1
    plan = cluster.reconcile()
    assert (plan.apply, plan.delete) == ([], [])
    status = cluster.service["status"]
    conditions = {condition["type"]: condition for condition in status["conditions"]}
    assert conditions["SpecValid"]["status"] == "False"
    assert conditions["SpecValid"]["message"] == ("spec.engine.maxNumSeq: unknown field; did you mean maxNumSeqs?")
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("False", "InvalidSpec")
    assert (status["phase"], status["readyReplicas"]) == ("Invalid", 2)
    assert [(event.type, event.reason) for event in plan.events][:1] == [("Warning", "InvalidSpec")]
    assert cluster.objects == objects
    del cluster.service["spec"]["engine"]["maxNumSeq"]
    cluster.converge()
    assert cluster.service["status"]["phase"] == "Ready"


def test_a_spec_that_was_never_valid_makes_nothing() -> None:
    cluster = MiniCluster(service())
    cluster.service["spec"] = ["not", "a", "spec"]
    plan = cluster.reconcile()
    assert (plan.apply, plan.delete) == ([], [])
    assert cluster.service["status"]["phase"] == "Invalid"


def test_a_service_that_is_being_deleted_is_left_to_garbage_collection(cluster: MiniCluster) -> None:
    cluster.service["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    del cluster.objects[Ref("Service", "team", "qwen-router")]
    plan = cluster.plan()
    assert (plan.apply, plan.delete, plan.status) == ([], [], None)


def test_the_spec_is_never_written(cluster: MiniCluster) -> None:
    cluster.edit(engine={"maxNumSeqs": 8}, replicas=0)
    before = copy.deepcopy(cluster.service["spec"])
    cluster.converge()
    assert cluster.service["spec"] == before
    assert all(ref.kind != "LLMService" for ref in cluster.objects)


def test_an_unreachable_engine_is_queried_again_soon(cluster: MiniCluster) -> None:
    assert cluster.plan().requeue_after is None
    cluster.engines.clear()
    assert cluster.plan().requeue_after == 10
    assert dataclasses.replace(cluster.plan(), requeue_after=None).status is None


def recreate(cluster: MiniCluster) -> set[str]:
    """Delete the service and make it anew while all its children are still there. Returns the old pods' names."""
    for pod in cluster.pods:
        pod["metadata"]["creationTimestamp"] = "2026-01-01T00:00:09Z"
    again = service({"replicas": 2}, uid="1a1a", creationTimestamp="2026-01-01T01:00:00Z")
    cluster.service = again
    return {pod["metadata"]["name"] for pod in cluster.pods}


def collect_garbage(cluster: MiniCluster) -> None:
    """Children of a service that no longer exists are deleted."""
    uid = cluster.service["metadata"]["uid"]
    cluster.objects = {
        ref: obj for ref, obj in cluster.objects.items() if obj["metadata"]["ownerReferences"][0]["uid"] == uid
    }


def test_a_service_made_again_is_not_ready_by_the_pods_of_the_one_before() -> None:
    cluster = MiniCluster(service({"replicas": 2}), WITH_KEY)
    cluster.converge()
    [deployment] = deployments(cluster)
    old = recreate(cluster)
    plan = cluster.reconcile()
    assert cluster.service["status"]["phase"] == "Pending"
    assert cluster.service["status"]["replicas"] == 0
    names = {Ref.of(obj).name for obj in plan.apply if obj["kind"] in ("Deployment", "ControllerRevision")}
    assert len(names) == 2
    assert deployment not in names  # what garbage collection is about to take is not kept alive
    assert plan.delete == []
    collect_garbage(cluster)
    cluster.pods = cluster.engine_pods  # the router's Deployment has another template now: its pods are replaced
    cluster.converge()
    assert not old & {pod["metadata"]["name"] for pod in cluster.engine_pods}
    assert cluster.service["status"]["phase"] == "Ready"
    assert len(history(cluster)) == 1


def test_a_service_made_again_has_a_secret_of_its_own() -> None:
    cluster = MiniCluster(service(), WITH_KEY)
    cluster.converge()
    recreate(cluster)
    secrets = [obj["metadata"]["name"] for obj in cluster.reconcile().apply if obj["kind"] == "Secret"]
    mounted = {
        volume["secret"]["secretName"]
        for obj in cluster.objects.values()
        if obj["kind"] == "Deployment" and obj["metadata"]["ownerReferences"][0]["uid"] == "1a1a"
        for volume in obj["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    }
    assert mounted == {*secrets}
    assert len([ref for ref in cluster.objects if ref.kind == "Secret"]) == 2


def test_an_api_server_whose_clock_is_behind_makes_no_pod_seem_old(cluster: MiniCluster) -> None:
    for pod in cluster.pods:
        pod["metadata"]["creationTimestamp"] = "2025-12-31T23:59:55Z"
    assert cluster.plan().status is None


@pytest.mark.parametrize("field", ["labels", "annotations"])
@pytest.mark.parametrize("kind", ["Deployment", "ControllerRevision"])
def test_labels_taken_away_by_hand_come_back(cluster: MiniCluster, kind: str, field: str) -> None:
    ref = next(ref for ref in cluster.objects if ref.kind == kind and "-engine-" in ref.name)
    del cluster.objects[ref]["metadata"][field]
    assert [Ref.of(obj) for obj in cluster.reconcile().apply] == [ref]
    plan = cluster.reconcile()
    assert (plan.apply, plan.delete, plan.status) == ([], [], None)


def test_a_rejected_replica_count_is_no_event_at_every_reconcile() -> None:
    cluster = MiniCluster(service())
    plan = cluster.plan()
    assert "ScaledUp" in [event.reason for event in plan.events]
    [deployment] = [obj for obj in plan.apply if obj["kind"] == "Deployment" and "-engine-" in obj["metadata"]["name"]]
    cluster.rejected = {Ref.of(deployment): "exceeded quota"}
    plan = cluster.plan()
    assert deployment in plan.apply
    assert "ScaledUp" not in [event.reason for event in plan.events]


@pytest.mark.parametrize(
    "status",
    [
        {"failures": [{"pod": "p"}, {"pod": ""}]},
        {"model": {}},
        {"model": {"bytes": 5}},
        {"model": {"bytes": 5, "downloaded": 5}},
        {"fit": {"source": "measured"}},
        {
            "fit": {
                "source": "measured",
                "weights": "heavy",
                "activations": "",
                "kvCache": "",
                "concurrency": "",
                "kvTokens": 0,
                "contextLength": 1024,
            }
        },
        {"preflight": [{"pod": "p"}, {"pod": "q", "items": [{"name": "check_shm", "status": "PASS"}]}]},
        {"conditions": [{"type": "Ready", "status": "True", "reason": "X", "lastTransitionTime": "yesterday"}]},
        {"revision": {}},
    ],
)
@pytest.mark.parametrize("uri", ["file:///models/qwen", "hf://Qwen/Qwen2.5-0.5B-Instruct"])
def test_a_status_that_somebody_else_wrote_is_written_anew(uri: str, status: Object) -> None:
    cluster = MiniCluster(service({"model": {"uri": uri}}))
    cluster.converge()
    wanted = cluster.service["status"]
    [pod] = cluster.engine_pods
    cluster.service["status"] = {"revision": wanted["revision"], **status}
    if "fit" in status:
        cluster.service["status"]["fit"] = {**status["fit"], "revision": wanted["revision"]["current"]}
    cluster.reconcile()
    if pod["status"]["initContainerStatuses"][0]["name"] == "fetch":
        cluster.terminate_container(pod, "fetch", 0)
    cluster.terminate_container(pod, "engine", 1)
    cluster.service["status"] |= status
    cluster.reconcile()
    cluster.converge()
    assert cluster.service["status"]["conditions"][0]["status"] == "True"


def test_an_autoscaler_may_set_the_number_of_routers() -> None:
    cluster = MiniCluster(service({"router": {"scaling": "External", "replicas": 2}}))
    cluster.converge()
    router = Ref("Deployment", "team", "qwen-router")
    assert cluster.objects[router]["spec"]["replicas"] == 2
    cluster.objects[router]["spec"]["replicas"] = 5
    plan = cluster.reconcile()
    assert (plan.apply, plan.prune) == ([], [])
    cluster.converge()
    conditions = {entry["type"]: entry["message"] for entry in cluster.service["status"]["conditions"]}
    assert conditions["RouterReady"] == "5 of 5 routers ready"
    # A change of the template keeps the number, and so does an edit of what it began with.
    cluster.edit(router={"scaling": "External", "replicas": 3, "workers": 2})
    [applied] = [obj for obj in cluster.reconcile().apply if obj["kind"] == "Deployment"]
    assert applied["spec"]["replicas"] == 5
    cluster.edit(router={"scaling": "Fixed", "replicas": 3})
    cluster.converge()
    assert cluster.objects[router]["spec"]["replicas"] == 3


def test_with_an_autoscaler_routers_share_their_limits_from_the_first_on() -> None:
    cluster = MiniCluster(service({"router": {"scaling": "External"}}))
    cluster.reconcile()
    [container] = cluster.objects[Ref("Deployment", "team", "qwen-router")]["spec"]["template"]["spec"]["containers"]
    assert "--peers" in container["args"]
