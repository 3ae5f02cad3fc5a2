"""JSON documents of the API: discovery, values, errors. Their shapes are those of ``k8s.io/metrics`` and of
``metav1.Status``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from blade_operator.external_metrics.catalog import METRICS, WINDOW
from blade_protocol.labels import GROUP

Document = dict[str, Any]

VERSION: Final = "v1beta1"
HPA_GROUP: Final = "external.metrics.k8s.io"
"""What HorizontalPodAutoscalers read; of a cluster, one program serves it."""
OWN_GROUP: Final = f"metrics.{GROUP}"
"""The same for clusters where another program, such as KEDA, serves `HPA_GROUP`."""
GROUPS: Final = (HPA_GROUP, OWN_GROUP)
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    503: "ServiceUnavailable",
}


def api_group(group: str) -> Document:
    """Of one of `GROUPS`: its only version."""
    version = {"groupVersion": f"{group}/{VERSION}", "version": VERSION}
    return {"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": [version], "preferredVersion": version}


def api_groups() -> Document:
    """All groups."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [api_group(group) for group in GROUPS]}


def api_resources(group: str) -> Document:
    """Discovery: every metric is a namespaced resource."""
    resources = [
        {"name": name, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
        for name in METRICS
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{VERSION}",
        "resources": resources,
    }


def metric_value(name: str, labels: Mapping[str, str], at: datetime, value: float) -> Document:
    """The value of a metric of one service, measured at ``at`` (UTC)."""
    return {
        "metricName": name,
        "metricLabels": dict(labels),
        "timestamp": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "window": WINDOW,
        "value": quantity(value),
    }


def value_list(group: str, items: Iterable[Document]) -> Document:
    """The response to a request for one metric."""
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": f"{group}/{VERSION}",
        "metadata": {},
        "items": list(items),
    }


def failure(code: int, message: str) -> Document:
    """A ``Status`` that says what is wrong, as HorizontalPodAutoscalers and kubectl quote it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(code, "InternalError"),
        "code": code,
    }


def quantity(value: float) -> str:
    """A finite number from 0 up as Kubernetes' quantity, in millionths at most: ``3``, ``350m``, ``12300u``.

    It is rounded up, as Kubernetes rounds quantities: what is not 0 does not become 0.
    """
    millionths = math.ceil(round(value * 1e6, 3))
    for unit, suffix in ((1_000_000, ""), (1_000, "m")):
        if millionths % unit == 0:
            return f"{millionths // unit}{suffix}"
    return f"{millionths}u"
