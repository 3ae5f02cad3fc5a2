"""The chart's values: every one has a default, a type that is enforced, and a line in its README."""

from __future__ import annotations

import copy
import json
import tomllib
from typing import Any

import jsonschema
import pytest
from chart_support.files import CHART, ROOT, chart, leaves, schema, table, values


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    jsonschema.Draft7Validator.check_schema(schema())
    return jsonschema.Draft7Validator(schema())


def changed(path: str, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(values())
    node: dict[str, Any] = result
    *parents, last = path.split(".")
    for name in parents:
        node = node[name]
    node[last] = value
    return result


def schema_leaves(node: dict[str, Any], path: str = "") -> set[str]:
    if "properties" not in node:
        return {path}
    return {
        leaf
        for name, child in node["properties"].items()
        for leaf in schema_leaves(child, f"{path}.{name}" if path else name)
    }


def test_defaults_are_valid(validator: jsonschema.Draft7Validator) -> None:
    assert [error.message for error in validator.iter_errors(values())] == []


def test_schema_and_defaults_name_the_same_values() -> None:
    maps = {"resources.requests", "resources.limits", "prometheus.podLabels", "dashboards.labels"}
    named = {next((each for each in maps if path.startswith(f"{each}.")), path) for path, _ in leaves(values())}
    assert maps <= named
    assert schema_leaves(schema()) - {"global"} == named


def test_every_mapping_is_closed_or_typed() -> None:
    def walk(node: dict[str, Any], path: str) -> None:
        if node.get("type") == "object" and path != "values.global":
            assert "additionalProperties" in node, path
            assert node["additionalProperties"] is not True, path
        for name, child in node.get("properties", {}).items():
            walk(child, f"{path}.{name}")
        if "items" in node:
            walk(node["items"], f"{path}[]")

    walk(schema(), "values")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replica", 2),
        ("image.name", "operator"),
        ("crd.keep", False),
        ("podMonitor.label", {}),
        ("resources.request", {}),
        ("replicas", 0),
        ("replicas", "2"),
        ("watchNamespaces", "team-a"),
        ("watchNamespaces", ["Team"]),
        ("watchNamespaces", ["a", "a"]),
        ("watchNamespaces", ["a,b"]),
        ("image.tag", 1.2),
        ("image.tag", "a tag"),
        ("image.repository", ""),
        ("image.repository", "bladellm/operator:1"),
        ("image.repository", "operator:1"),
        ("image.registry", "https://registry.example.com"),
        ("image.digest", "sha256:1234"),
        ("image.pullPolicy", "Sometimes"),
        ("engineImage.pullPolicy", "Always"),
        ("imagePullSecrets", ["registry"]),
        ("log.level", "info"),
        ("workers", 0),
        ("nodeSelector", {"gpu": True}),
        ("tolerations", [{"keys": "gpu"}]),
        ("podMonitor.interval", "30"),
        ("openshift", "yes"),
        ("externalMetrics.group", "metrics.k8s.io"),
        ("externalMetrics.enabled", "yes"),
        ("externalMetrics.tls.caBundle", "LS0tLS1CRUdJTg=="),
        ("externalMetrics.tls.renewDays", 3650),
        ("groups.kind", "Deployment"),
        ("prometheus.namespaces", "monitoring"),
        ("prometheus.podLabels", {"app": 1}),
        ("networkPolicy.apiServer", ["10.0.0.1"]),
        ("networkPolicy.apiServer", [{"cidr": "10.0.0.1", "port": 443}]),
        ("networkPolicy.apiServer", [{"cidr": "10.0.0.1/32", "port": "443"}]),
    ],
)
def test_mistakes_are_refused(validator: jsonschema.Draft7Validator, path: str, value: Any) -> None:
    assert not validator.is_valid(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("watchNamespaces", ["team-a", "team-b"]),
        ("image.registry", "registry.example.com:5000/mirror"),
        ("image.registry", "localhost:5000"),
        ("image.repository", "localhost:5000/bladellm/operator"),
        ("image.repository", "ghcr.io/example/bladellm_operator"),
        ("image.digest", "sha256:" + "0" * 64),
        ("imagePullSecrets", [{"name": "registry"}]),
        ("resources.limits", {"cpu": 1, "memory": "1Gi"}),
        ("tolerations", [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}]),
        ("externalMetrics.group", "metrics.serving.bladellm.io"),
        ("externalMetrics.tls.caBundle", "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"),
        ("externalMetrics.tls.annotations", {"cert-manager.io/inject-ca-from": "a/b"}),
        ("global", {"anything": 1}),
    ],
)
def test_what_people_set_is_accepted(validator: jsonschema.Draft7Validator, path: str, value: Any) -> None:
    validator.validate(changed(path, value))


def test_readme_lists_every_value_with_its_default() -> None:
    rows = table((CHART / "README.md").read_text(), "| Value | Default |")
    listed = {name.strip("`"): default.strip("`") for name, default, _ in rows}
    assert listed == {
        path: value if isinstance(value, str) and value else json.dumps(value) for path, value in leaves(values())
    }


def test_chart_and_program_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (chart()["version"], chart()["appVersion"]) == (project["version"], project["version"])
