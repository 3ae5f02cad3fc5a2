"""The LeaderWorkerSet of an engine: valid to the last field, with pods like those of a StatefulSet."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import pytest
from operator_support.leader_worker_set_schema import leader_worker_set_schema
from operator_support.mini_cluster import service
from operator_support.rendering import CASES, DEFAULTS, LEADER_WORKER_SETS, containers, render, render_case

from blade_operator.model.controllers import LEADER_WORKER_SET, STATEFUL_SET, pod_template_of, pods_of
from blade_operator.model.groups import find_groups, machine_of
from blade_operator.model.objects import Object
from blade_operator.render import engine_group, pod_template, with_members
from blade_operator.spec import parse_service
from blade_protocol import environment
from blade_protocol.labels import HASH, MEMBERS

TWO: dict[str, Any] = CASES["nodes"]["engine"]["gpus"]


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = leader_worker_set_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def of_kind(kind: str, objects: list[Object]) -> list[Object]:
    return [obj for obj in objects if obj["kind"] == kind]


def environment_of(obj: Object) -> dict[str, Any]:
    [engine] = [container for container in containers(obj) if container["name"] == "engine"]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in engine["env"]}


@pytest.mark.parametrize("case", ["leader_worker_sets", "nodes", "gpu_pvc", "hub_cache"])
def test_it_has_all_required_fields_and_none_that_its_api_lacks(
    validator: jsonschema.Draft202012Validator, case: str
) -> None:
    spec = copy.deepcopy(CASES[case])
    spec["engine"] = {**spec.get("engine", {}), "gpus": TWO}
    found = of_kind(LEADER_WORKER_SET, render(spec, LEADER_WORKER_SETS))
    assert found
    for obj in found:
        validator.validate(obj)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.leaderWorkerTemplate.restartPolicy", "Never"),
        ("spec.leaderWorkerTemplate.replicas", 2),
        ("spec.leaderWorkerTemplate.workerTemplate.spec.container", []),
        ("spec.leaderWorkerTemplate.workerTemplate.spec.shareProcessNamespace", "true"),
        ("spec.serviceName", "qwen"),
        ("spec.networkConfig", {}),
    ],
)
def test_the_schema_refuses_mistakes(validator: jsonschema.Draft202012Validator, path: str, value: Any) -> None:
    [obj, *_] = of_kind(LEADER_WORKER_SET, render_case("leader_worker_sets"))
    *parents, last = path.split(".")
    place = obj
    for name in parents:
        place = place[name]
    place[last] = value
    assert not validator.is_valid(obj)


def test_its_pods_differ_from_those_of_a_stateful_set_in_the_leaders_name_only() -> None:
    spec = CASES["nodes"]
    [stateful_set, _] = of_kind(STATEFUL_SET, render(spec))
    [obj, _] = of_kind(LEADER_WORKER_SET, render(spec, LEADER_WORKER_SETS))
    name = obj["metadata"]["name"]
    assert name == stateful_set["metadata"]["name"]
    assert pods_of(obj) == pods_of(stateful_set) == 2
    # The Service that its controller makes has its own name.
    leaders = [environment_of(each)[environment.LEADER] for each in (obj, stateful_set)]
    assert leaders == [f"{name}-0.{name}.team.svc", f"{name}-0.qwen-engine-members.team.svc"]
    text = str(pod_template_of(obj)).replace(leaders[0], leaders[1])
    assert text == str(pod_template_of(stateful_set))


@pytest.mark.parametrize("after", [STATEFUL_SET, LEADER_WORKER_SET])
@pytest.mark.parametrize("before", [STATEFUL_SET, LEADER_WORKER_SET])
def test_the_template_of_a_group_makes_another_group_of_either_kind(before: str, after: str) -> None:
    """It is all that is left of a revision whose stored template someone deleted."""
    typed = parse_service(service(CASES["nodes"]))
    template = pod_template(typed, DEFAULTS)
    there = engine_group(typed, "0a0a", template, 0, kind=before)
    made = engine_group(typed, "0a0a", pod_template_of(there), 1, kind=after)
    assert made == engine_group(typed, "0a0a", template, 1, kind=after)


def test_nothing_but_the_queue_and_the_placement_is_taken_from_the_service() -> None:
    [obj] = of_kind(LEADER_WORKER_SET, render_case("leader_worker_sets"))
    metadata = obj["metadata"]
    assert metadata["labels"]["kueue.x-k8s.io/queue-name"] == "inference"
    assert "team" not in metadata["labels"]
    exclusive = "leaderworkerset.sigs.k8s.io/exclusive-topology"
    assert metadata["annotations"] == {exclusive: "topology.kubernetes.io/rack", HASH: metadata["annotations"][HASH]}


def test_its_groups_are_known_by_its_name_and_its_machines_by_their_pods(
    validator: jsonschema.Draft202012Validator,
) -> None:
    [obj] = of_kind(LEADER_WORKER_SET, render_case("leader_worker_sets"))
    name, template = obj["metadata"]["name"], pod_template_of(obj)
    pods = [
        {"metadata": {**template["metadata"], "name": pod}, "status": {"phase": "Running"}}
        for pod in (f"{name}-0-1", f"{name}-0")
    ]
    obj["metadata"]["labels"] = {}
    [group] = find_groups([obj], pods)
    assert (group.revision, group.number, group.nodes) == (name.split("-")[1], 0, 2)
    assert [machine_of(pod) for pod in group.pods] == [0, 1]
    assert group.leader is not None
    assert group.leader["metadata"]["name"] == f"{name}-0"


def test_marking_it_as_whole_changes_nothing_else(validator: jsonschema.Draft202012Validator) -> None:
    """Its controller would replace its pods, whose template it compares, and the queue of its pods cannot change."""
    typed = parse_service(service(CASES["nodes"], labels={"kueue.x-k8s.io/queue-name": "another"}))
    [stored] = of_kind(LEADER_WORKER_SET, render_case("leader_worker_sets"))
    stored["spec"]["rolloutStrategy"] = {"type": "RollingUpdate"}
    stored["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["schedulerName"] = "default-scheduler"
    marked = with_members(typed, stored, "0123")
    validator.validate(marked)
    assert marked["spec"] == stored["spec"]
    assert marked["metadata"]["labels"] == stored["metadata"]["labels"]
    annotations = {**stored["metadata"]["annotations"], MEMBERS: "0123"}
    assert marked["metadata"]["annotations"] == {**annotations, HASH: marked["metadata"]["annotations"][HASH]}
    assert marked["metadata"]["annotations"][HASH] != stored["metadata"]["annotations"][HASH]
