"""The API's documents, field by field as Kubernetes' clients read them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from blade_operator.external_metrics import documents
from blade_operator.external_metrics.catalog import METRICS
from blade_operator.external_metrics.documents import GROUPS, quantity


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (3, "3"),
        (1000, "1000"),
        (0.35, "350m"),
        (1.5, "1500m"),
        (0.0123, "12300u"),
        (0.1 + 0.2, "300m"),
        (2 / 3, "666667u"),
        (1e-9, "1u"),
        (12.0000001, "12000001u"),
        (1e12, "1000000000000"),
    ],
)
def test_quantities(value: float, text: str) -> None:
    assert quantity(value) == text


def test_discovery_names_every_metric() -> None:
    groups = documents.api_groups()
    assert (groups["kind"], groups["apiVersion"]) == ("APIGroupList", "v1")
    assert [group["name"] for group in groups["groups"]] == [
        "external.metrics.k8s.io",
        "metrics.serving.bladellm.io",
    ]
    for group in GROUPS:
        found = documents.api_group(group)
        assert found["preferredVersion"] == {"groupVersion": f"{group}/v1beta1", "version": "v1beta1"}
        assert found["versions"] == [found["preferredVersion"]]
        resources = documents.api_resources(group)
        assert (resources["kind"], resources["groupVersion"]) == ("APIResourceList", f"{group}/v1beta1")
        assert {each["name"] for each in resources["resources"]} == METRICS.keys()
        for each in resources["resources"]:
            assert each | {"name": ""} == {
                "name": "",
                "singularName": "",
                "namespaced": True,
                "kind": "ExternalMetricValueList",
                "verbs": ["get"],
            }


def test_values() -> None:
    at = datetime(2026, 11, 29, 1, 2, 3, 999_999, UTC)
    value = documents.metric_value("bladellm_ttft_p90_seconds", {"serving.bladellm.io/name": "qwen"}, at, 0.35)
    assert documents.value_list("external.metrics.k8s.io", [value]) == {
        "kind": "ExternalMetricValueList",
        "apiVersion": "external.metrics.k8s.io/v1beta1",
        "metadata": {},
        "items": [
            {
                "metricName": "bladellm_ttft_p90_seconds",
                "metricLabels": {"serving.bladellm.io/name": "qwen"},
                "timestamp": "2026-11-29T01:02:03Z",
                "window": 60,
                "value": "350m",
            }
        ],
    }


def test_errors_are_statuses() -> None:
    assert documents.failure(404, "there is no metric 'x'") == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "there is no metric 'x'",
        "reason": "NotFound",
        "code": 404,
    }
    assert documents.failure(503, "")["reason"] == "ServiceUnavailable"
