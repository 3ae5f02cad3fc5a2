"""Drift detection: what a server adds or normalizes is no drift, what users change is."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from blade_operator.reconcile.drift import contains, differs, surplus
from blade_operator.render.meta import seal


@pytest.mark.parametrize(
    ("observed", "desired"),
    [
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}, {"env": [{"name": "Y", "value": "2"}]}),
        ({"env": [{"name": "X"}]}, {"env": [{"name": "X", "value": ""}]}),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"cpu": "1000m", "memory": "1024Mi"}}),
        ({"emptyDir": {"sizeLimit": "1Gi"}}, {"emptyDir": {"sizeLimit": "1024Mi"}}),
        ({}, {"args": []}),
        ({}, {"hostNetwork": False, "initialDelaySeconds": 0, "nodeSelector": {}}),
        ({"limits": {"nvidia.com/gpu": "1"}}, {"limits": {"nvidia.com/gpu": 1}}),
        ({"requests": {"storage": "1Gi", "ephemeral-storage": "1Gi"}}, {"requests": {"ephemeral-storage": "1024Mi"}}),
        (
            {"volumeMounts": [{"name": "a", "mountPath": "/x"}, {"name": "a", "mountPath": "/y", "subPath": "y"}]},
            {"volumeMounts": [{"name": "a", "mountPath": "/y", "subPath": "y"}, {"name": "a", "mountPath": "/x"}]},
        ),
        ({"args": ["a", "b"]}, {"args": ["a", "b"]}),
    ],
)
def test_what_a_server_adds_or_rewrites_is_no_difference(observed: Any, desired: Any) -> None:
    assert contains(observed, desired)


@pytest.mark.parametrize(
    ("observed", "desired"),
    [
        ({}, {"a": 1}),
        ({}, {"automountServiceAccountToken": False}),
        ({}, {"replicas": 0}),
        ({"volumeMounts": [{"name": "a", "mountPath": "/x"}]}, {"volumeMounts": [{"name": "a", "mountPath": "/y"}]}),
        ({"subjects": [{"name": "a"}, {"name": "b"}]}, {"subjects": [{"name": "a"}]}),
        ({"rules": [{"verbs": ["list"]}, {"verbs": ["get"]}]}, {"rules": [{"verbs": ["list"]}]}),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "A"}, {"name": "B"}]}),
        ({"replicas": 1}, {"replicas": 0}),
        ({"args": ["a", "b", "c"]}, {"args": ["a", "b"]}),
        ({"args": ["b", "a"]}, {"args": ["a", "b"]}),
        ({"env": [{"name": "X", "value": "2"}]}, {"env": [{"name": "X", "value": "1"}]}),
        ({"containers": [{"name": "other"}]}, {"containers": [{"name": "engine"}]}),
        ({"limits": {"cpu": "2"}}, {"limits": {"cpu": "1000m"}}),
        ({"image": "1"}, {"image": "1000m"}),
        ({"a": "x"}, {"a": {"b": 1}}),
        ({"a": {"b": 1}}, {"a": ["b"]}),
    ],
)
def test_what_a_person_changes_is_one(observed: Any, desired: Any) -> None:
    assert not contains(observed, desired)


@pytest.mark.parametrize(
    ("observed", "desired", "paths"),
    [
        ({"env": [{"name": "A"}, {"name": "B"}]}, {"env": [{"name": "A"}]}, ["/env/1"]),
        ({"env": [{"name": "A"}, {"name": "A"}, {"x": 1}]}, {"env": [{"name": "A"}]}, ["/env/2", "/env/1"]),
        ({"volumes": [{"name": "x"}], "env": [{"name": "A"}]}, {"env": [{"name": "A"}]}, []),
        ({"ownerReferences": [{"uid": "1"}, {"uid": "2"}]}, {"ownerReferences": [{"uid": "1"}]}, []),
        ({"a/b~": {"env": [{"name": "A"}]}}, {"a/b~": {"env": []}}, ["/a~1b~0/env/0"]),
        (
            {
                "containers": [
                    {"name": "sidecar"},
                    {"name": "engine", "env": [{"name": "X"}, {"name": "A"}], "volumeMounts": [{"mountPath": "/x"}]},
                    {"name": "other"},
                ]
            },
            {"containers": [{"name": "engine", "env": [{"name": "A"}], "volumeMounts": []}]},
            ["/containers/2", "/containers/1/volumeMounts/0", "/containers/1/env/0", "/containers/0"],
        ),
    ],
)
def test_items_that_somebody_added_are_found_in_the_order_in_which_they_can_be_removed(
    observed: Any, desired: Any, paths: list[str]
) -> None:
    assert contains(observed, desired)
    assert surplus(observed, desired) == tuple(paths)


def test_a_field_that_is_no_longer_rendered_is_detected_by_the_hash() -> None:
    desired = seal({"kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1"}})
    observed = seal({"kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "1", "b": "2"}})
    assert contains(observed["data"], desired["data"])
    assert differs(observed, desired)
    stored = copy.deepcopy(desired)
    stored["metadata"]["resourceVersion"] = "7"
    assert not differs(stored, desired)
    assert differs(None, desired)
    assert seal(desired) == desired
