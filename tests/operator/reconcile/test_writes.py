"""Which objects are applied and deleted: Secrets without ever being read, claims to grow, policies while needed."""

from __future__ import annotations

import copy
import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object, Ref
from blade_operator.reconcile.writes import objects_to_apply, objects_to_delete
from blade_operator.render import Defaults, service_objects
from blade_operator.render.internal_token import internal_token
from blade_operator.render.meta import seal
from blade_operator.spec import parse_service
from blade_protocol.labels import OF_CLAIM

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEFAULTS = Defaults(engine_image="engine:1", router_image="operator:1", internal_key=b"k" * 32)
HUB = {"uri": "hf://a/b"}


def token_cluster() -> MiniCluster:
    """A settled service whose Secret the operator cannot see."""
    cluster = MiniCluster(service(), DEFAULTS)
    converge(cluster)
    return cluster


def converge(cluster: MiniCluster) -> list[str]:
    """Kinds written until nothing is any more; Secrets are never observed."""
    written: list[str] = []
    for _ in range(20):
        plan = cluster.reconcile()
        for ref in [ref for ref in cluster.objects if ref.kind == "Secret"]:
            del cluster.objects[ref]
        written += [obj["kind"] for obj in plan.apply]
        cluster.run_controllers()
        cluster.remove_terminating_pods()
        for pod in cluster.pods:
            cluster.become_ready(pod)
        if not plan.apply and not plan.actions and plan.status is None:
            return written
    raise AssertionError(f"not steady: {written}")


def test_the_token_is_the_services_own() -> None:
    token = internal_token(b"k", "team", "qwen", "1")
    assert (len(token), token) == (64, internal_token(b"k", "team", "qwen", "1"))
    others = [
        (b"x", "team", "qwen", "1"),
        (b"k", "b", "qwen", "1"),
        (b"k", "team", "b", "1"),
        (b"k", "team", "qwen", "2"),
    ]
    assert token not in [internal_token(*other) for other in others]
    with pytest.raises(ValueError, match="empty"):
        internal_token(b"", "team", "qwen", "1")


def test_the_secret_is_written_with_the_first_deployment_and_never_at_rest() -> None:
    cluster = MiniCluster(service(), DEFAULTS)
    kinds = [obj["kind"] for obj in cluster.plan().apply]
    assert kinds.index("Secret") < kinds.index("Deployment")
    assert converge(cluster).count("Secret") == 1
    for _ in range(5):
        assert cluster.plan().apply == []


def test_the_secret_is_written_with_a_later_deployment() -> None:
    cluster = token_cluster()
    cluster.edit(replicas=2)
    assert [obj["kind"] for obj in cluster.plan().apply] == ["Secret", "Deployment"]
    assert "Secret" not in [obj["kind"] for obj in MiniCluster(service()).plan().apply]


def test_another_key_restarts_nothing() -> None:
    cluster = token_cluster()
    cluster.defaults = dataclasses.replace(DEFAULTS, internal_key=b"x" * 32)
    assert cluster.plan().apply == []
    converge(cluster)
    assert cluster.service["status"]["revision"]["outdated"] is False


def test_where_engines_expect_the_token_of_another_key_the_status_says_so_and_the_secret_is_replaced() -> None:
    cluster = token_cluster()
    cluster.defaults = dataclasses.replace(DEFAULTS, internal_key=b"x" * 32)
    [engine] = [pod["metadata"]["name"] for pod in cluster.engine_pods]
    cluster.unauthorized = {engine}
    cluster.engines.clear()
    plan = cluster.reconcile()
    [secret] = plan.replace
    assert (secret["kind"], plan.apply) == ("Secret", [])
    conditions = {entry["type"]: entry for entry in cluster.service["status"]["conditions"]}
    assert (conditions["Degraded"]["status"], conditions["Degraded"]["reason"]) == ("True", "InternalTokenRefused")
    said = f"since Secret {secret['metadata']['name']} was made; the operator replaces it"
    assert said in conditions["Degraded"]["message"]
    assert conditions["Ready"]["status"] == "True"  # requests are served as before
    cluster.unauthorized.clear()
    plan = cluster.reconcile()
    assert (plan.replace, plan.apply) == ([], [])
    conditions = {entry["type"]: entry for entry in cluster.service["status"]["conditions"]}
    assert conditions["Degraded"]["status"] == "False"


def waiting(seconds: float, **changes: Any) -> Object:
    """A pod that was placed and waits, ``seconds`` after it was made."""
    conditions = {"PodScheduled": "True", "PodReadyToStartContainers": "False"} | changes.pop("conditions", {})
    container = {
        "name": "check",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": {"reason": "PodInitializing"}},
    }
    return {
        "metadata": {"name": "p", "creationTimestamp": (NOW - timedelta(seconds=seconds)).isoformat()},
        "spec": {"containers": []},
        "status": {
            "phase": "Pending",
            "conditions": [{"type": kind, "status": status} for kind, status in conditions.items()],
            "initContainerStatuses": [container | changes],
        },
    }


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (waiting(31), True),
        (waiting(29), False),
        (waiting(31, conditions={"PodScheduled": "False"}), False),
        # Its volumes are there: it waits for its image.
        (waiting(31, conditions={"PodReadyToStartContainers": "True"}), False),
        (waiting(31, state={"running": {}}), False),
        (waiting(31, lastState={"terminated": {"exitCode": 1}}), False),
    ],
)
def test_a_pod_that_waits_for_its_volumes_gets_the_secret(pod: Object, expected: bool) -> None:
    assert podutil.waits_for_volumes(pod, NOW) is expected
    secrets = [obj for obj in service_objects(parse_service(service()), DEFAULTS) if obj["kind"] == "Secret"]
    assert objects_to_apply(secrets, {}, [pod], NOW) == (secrets if expected else [])


def claim(**cache: Any) -> Object:
    typed = parse_service(service({"model": HUB | {"cache": cache}}))
    [found] = [obj for obj in service_objects(typed, DEFAULTS) if obj["kind"] == "PersistentVolumeClaim"]
    return found


def test_a_claim_is_made_once_and_then_only_grows() -> None:
    wanted = claim(size="20Gi")
    assert objects_to_apply([wanted], {}, [], NOW) == [wanted]
    there = copy.deepcopy(wanted)
    there["spec"] |= {"storageClassName": "standard", "volumeName": "pv-1", "volumeMode": "Filesystem"}
    observed = {Ref.of(there): there}
    for same in (wanted, claim(size="20480Mi"), claim(size="10Gi"), claim(size="20Gi", storageClassName="fast")):
        assert objects_to_apply([same], observed, [], NOW) == []
    [grown] = objects_to_apply(
        [claim(size="30Gi", storageClassName="fast", accessModes=["ReadWriteMany"])], observed, [], NOW
    )
    assert grown["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "standard",
        "resources": {"requests": {"storage": "30Gi"}},
    }
    assert seal(grown) == grown


def test_unneeded_network_policies_are_deleted_and_nothing_else_is() -> None:
    cluster = MiniCluster(service({"model": HUB | {"cache": {"size": "1Gi"}}}), DEFAULTS)
    converge(cluster)
    foreign = copy.deepcopy(next(obj for ref, obj in cluster.objects.items() if ref.kind == "NetworkPolicy"))
    foreign["metadata"] |= {"name": "mine", "ownerReferences": []}
    cluster.objects[Ref.of(foreign)] = foreign
    assert objects_to_delete([], cluster.objects.values(), "another") == []
    cluster.edit(model=HUB, security={"networkPolicy": False})
    plan = cluster.plan()
    assert [(ref.kind, ref.name) for ref in plan.delete if ref.kind != "Deployment"] == [
        ("NetworkPolicy", "qwen-engine"),
        ("NetworkPolicy", "qwen-router"),
    ]
    converge(cluster)
    assert ("PersistentVolumeClaim", "qwen-models") in {(ref.kind, ref.name) for ref in cluster.objects}
    cluster.edit(security={"networkPolicy": True})
    assert [obj["kind"] for obj in cluster.plan().apply] == ["NetworkPolicy", "NetworkPolicy"]


def test_engines_are_placed_by_the_access_modes_of_the_claim_that_is_there() -> None:
    """As of a claim that an earlier spec of the service had, or an older CRD let change."""
    cache = {"size": "1Gi"}
    cluster = MiniCluster(service({"model": HUB | {"cache": cache}}), DEFAULTS)
    cluster.reconcile()
    [claimed] = [obj for ref, obj in cluster.objects.items() if ref.kind == "PersistentVolumeClaim"]

    def together() -> bool:
        [deployment] = [
            obj
            for ref, obj in cluster.objects.items()
            if ref.kind == "Deployment" and ref.name.endswith(cluster.service["status"]["revision"]["current"])
        ]
        return "affinity" in deployment["spec"]["template"]["spec"]

    assert together()
    cluster.edit(model=HUB | {"cache": cache | {"accessModes": ["ReadWriteMany"]}})
    cluster.reconcile()
    assert together()  # what is there can be mounted by one machine only
    claimed["spec"]["accessModes"] = ["ReadWriteMany"]
    cluster.reconcile()
    assert not together()


def test_an_upgrade_restarts_no_engine_whose_claim_somebody_made_by_hand() -> None:
    """Earlier releases placed engines by the spec alone, and hashed it so."""
    cache = {"size": "1Gi", "accessModes": ["ReadWriteMany"]}
    cluster = MiniCluster(service({"model": HUB | {"cache": cache}}), DEFAULTS)
    converge(cluster)
    [claimed] = [obj for ref, obj in cluster.objects.items() if ref.kind == "PersistentVolumeClaim"]
    [revision] = [obj for ref, obj in cluster.objects.items() if ref.kind == "ControllerRevision"]
    claimed["spec"]["accessModes"] = ["ReadWriteOnce"]
    del revision["metadata"]["annotations"][OF_CLAIM]
    assert [obj["kind"] for obj in cluster.reconcile().apply] == ["ControllerRevision"]
    assert cluster.service["status"]["revision"]["outdated"]
    assert cluster.plan().apply == []
    cluster.edit(engine={"maxNumSeqs": 4})
    assert "Deployment" in [obj["kind"] for obj in cluster.reconcile().apply]
    assert not cluster.service["status"]["revision"]["outdated"]  # placed by the claim from now on
