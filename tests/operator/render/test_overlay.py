"""How a user's podTemplate is merged into a rendered pod: as by a strategic merge patch."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from blade_operator.render.overlay import lay_over
from blade_operator.spec.pod_fields import PodTemplate

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"app": "x"}},
    "spec": {
        "securityContext": {"runAsUser": 1, "runAsNonRoot": True},
        "initContainers": [{"name": "check"}],
        "containers": [
            {
                "name": "engine",
                "command": ["serve"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"name": "http", "containerPort": 8081}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
        "topologySpreadConstraints": [{"topologyKey": "host", "maxSkew": 1}],
    },
}


def laid(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    overlay = PodTemplate.model_validate({"spec": spec, **({"metadata": metadata} if metadata else {})})
    before = copy.deepcopy(TEMPLATE)
    merged = lay_over(TEMPLATE, overlay)
    assert before == TEMPLATE
    return merged


def test_nothing_changes_without_an_overlay() -> None:
    assert lay_over(TEMPLATE, None) == TEMPLATE == laid({})


def test_objects_merge_and_null_removes() -> None:
    merged = laid({"securityContext": {"runAsUser": None, "fsGroup": 5}, "affinity": {"a": None, "b": 1}, "x": None})
    assert merged["spec"]["securityContext"] == {"runAsNonRoot": True, "fsGroup": 5}
    assert merged["spec"]["affinity"] == {"b": 1}
    assert "x" not in merged["spec"]


def test_labels_and_annotations_are_added() -> None:
    assert laid({}, labels={"team": "a"}, annotations={"n": "1"})["metadata"] == {
        "labels": {"app": "x", "team": "a"},
        "annotations": {"n": "1"},
    }


def test_containers_merge_by_name_and_new_ones_follow() -> None:
    merged = laid({"containers": [{"name": "proxy", "image": "p"}, {"name": "engine", "tty": True}]})
    assert [each["name"] for each in merged["spec"]["containers"]] == ["engine", "proxy"]
    assert merged["spec"]["containers"][0] == {**TEMPLATE["spec"]["containers"][0], "tty": True}


def test_new_init_containers_come_first() -> None:
    merged = laid({"initContainers": [{"name": "check", "tty": True}, {"name": "login"}]})
    assert merged["spec"]["initContainers"] == [{"name": "login"}, {"name": "check", "tty": True}]


@pytest.mark.parametrize(
    ("field", "items", "expected"),
    [
        (
            "env",
            [{"name": "B", "valueFrom": {"fieldRef": {}}}, {"name": "C", "value": "3"}],
            [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {}}}, {"name": "C", "value": "3"}],
        ),
        (
            "ports",
            [{"containerPort": 8081, "protocol": "TCP"}, {"name": "debug", "containerPort": 1}],
            [{"name": "http", "containerPort": 8081, "protocol": "TCP"}, {"name": "debug", "containerPort": 1}],
        ),
        (
            "volumeMounts",
            [{"name": "tmp", "mountPath": "/x"}, {"name": "other", "mountPath": "/tmp"}],
            [{"name": "other", "mountPath": "/tmp"}, {"name": "tmp", "mountPath": "/x"}],
        ),
    ],
)
def test_lists_in_a_container_merge_by_what_names_their_items(field: str, items: Any, expected: Any) -> None:
    assert laid({"containers": [{"name": "engine", field: items}]})["spec"]["containers"][0][field] == expected


def test_a_volume_keeps_its_source_or_gets_another_one() -> None:
    assert laid({"volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "2Gi"}}]})["spec"]["volumes"] == [
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}
    ]
    assert laid({"volumes": [{"name": "tmp", "ephemeral": {}}, {"name": "a", "secret": {}}]})["spec"]["volumes"] == [
        {"name": "tmp", "ephemeral": {}},
        {"name": "a", "secret": {}},
    ]


def test_constraints_merge_by_topology_and_other_lists_are_replaced() -> None:
    merged = laid(
        {
            "topologySpreadConstraints": [{"topologyKey": "zone"}, {"topologyKey": "host", "maxSkew": 2}],
            "tolerations": [{"key": "gpu"}],
        }
    )
    assert merged["spec"]["topologySpreadConstraints"] == [
        {"topologyKey": "host", "maxSkew": 2},
        {"topologyKey": "zone"},
    ]
    assert merged["spec"]["tolerations"] == [{"key": "gpu"}]
