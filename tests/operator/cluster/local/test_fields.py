"""The local runtime rejects unsupported fields by path, and ignores only fields on its list."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from operator_support.local import local
from operator_support.objects import config_map, deployment, router, service

from blade_operator.cluster.local.errors import UnsupportedField
from blade_operator.cluster.local.fields import require_supported
from blade_operator.model.objects import Object

_POD = "spec.template.spec"
_CONTAINER = f"{_POD}.containers[0]"


def _with(obj: Object, path: list[Any], value: Any) -> Object:
    obj = copy.deepcopy(obj)
    place = obj
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return obj


_TEMPLATE: list[Any] = ["spec", "template", "spec"]
_FIRST = [*_TEMPLATE, "containers", 0]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ([*_TEMPLATE, "hostNetwork"], True, f"{_POD}.hostNetwork is not supported"),
        ([*_FIRST, "lifecycle"], {"preStop": {"exec": {}}}, f"{_CONTAINER}.lifecycle.preStop.exec is not supported"),
        ([*_FIRST, "lifecycle"], {"postStart": {}}, f"{_CONTAINER}.lifecycle.postStart is not supported"),
        ([*_FIRST, "workingDir"], "/x", f"{_CONTAINER}.workingDir is not supported"),
        ([*_FIRST, "readinessProbe"], {"exec": {}}, f"{_CONTAINER}.readinessProbe.exec is not supported"),
        ([*_FIRST, "readinessProbe", "httpGet", "scheme"], "FTP", "httpGet.scheme is 'FTP'"),
        ([*_FIRST, "env", 0, "valueFrom"], {"resourceFieldRef": {}}, "env[0].valueFrom.resourceFieldRef"),
        ([*_FIRST, "ports", 0, "protocol"], "UDP", "ports[0].protocol is 'UDP'; the local runtime knows 'TCP' only"),
        ([*_FIRST, "ports", 0, "name"], "grpc", "needs the environment variable BLADE_GRPC_PORT"),
        ([*_FIRST, "readinessProbe", "httpGet", "port"], 8081, "Probe.httpGet.port is 8081: name one of"),
        ([*_FIRST, "readinessProbe", "httpGet", "port"], "web", "Probe.httpGet.port is 'web': name one of"),
        ([*_FIRST, "volumeMounts"], [{"name": "x", "mountPath": "/x"}], "volumeMounts[0].name is 'x': there is no"),
        ([*_FIRST, "command"], [], "containers[0].command is missing"),
        ([*_TEMPLATE, "volumes"], [{"name": "a", "nfs": {}}], f"{_POD}.volumes[0].nfs is not supported"),
        ([*_TEMPLATE, "restartPolicy"], "Never", f"{_POD}.restartPolicy is 'Never'"),
        (["spec", "selector", "matchExpressions"], [], "spec.selector.matchExpressions is not supported"),
        (["spec", "paused"], True, "spec.paused is not supported"),
        (["data"], {}, "data is not supported"),
    ],
)
def test_a_deployment_with_an_unsupported_field_is_rejected_by_path(path: list[Any], value: Any, message: str) -> None:
    with pytest.raises(UnsupportedField) as refused:
        require_supported(_with(deployment(), path, value))
    assert str(refused.value).startswith("Deployment default/qwen-engine-aaa: ")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["spec", "type"], "NodePort", "spec.type is 'NodePort'"),
        (["spec", "sessionAffinity"], "ClientIP", "spec.sessionAffinity is not supported"),
    ],
)
def test_a_service_with_an_unsupported_field_is_rejected(path: list[Any], value: Any, message: str) -> None:
    with pytest.raises(UnsupportedField) as refused:
        require_supported(_with(service(), path, value))
    assert message in str(refused.value)


def test_a_kind_that_means_nothing_here_is_refused() -> None:
    with pytest.raises(UnsupportedField, match="has no DaemonSet objects"):
        require_supported({"kind": "DaemonSet", "metadata": {"name": "x"}})


def test_isolation_and_resources_are_ignored_on_purpose() -> None:
    obj = deployment(securityContext={"runAsUser": 65532}, tolerations=[], serviceAccountName="x")
    obj["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2"}}
    require_supported(obj)


async def test_a_refused_object_is_not_stored(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        with pytest.raises(UnsupportedField):
            await runtime.apply(_with(deployment(), [*_TEMPLATE, "hostNetwork"], True))
        assert runtime.store.find("Deployment") == []


def test_the_stand_ins_of_these_tests_are_supported() -> None:
    for obj in (deployment(), router(), service(), config_map("x")):
        require_supported(obj)
