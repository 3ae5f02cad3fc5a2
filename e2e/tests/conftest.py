"""One small LLMService that many tests share: an engine takes seconds to start, and most questions need just one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.base import Cluster
from e2e.support.diagnostics import dump_namespace
from e2e.support.namespaces import OF_A_TEST, discard_namespace, make_namespace
from e2e.support.service import CLAIM, DEMO_MODEL, Service

SHARED = "shared-demo"
CHAT_TEMPLATE: str = json.loads((DEMO_MODEL / "model" / "tokenizer_config.json").read_text())["chat_template"] + (
    "{# 'of' the \"LLMService\", \\n é #}"
)
DEMO: dict[str, Any] = {
    "replicas": 1,
    "engine": {"chatTemplate": {"inline": CHAT_TEMPLATE}},
    "router": {"replicas": 2, "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}}},
}
"""Two routers, as anybody has who minds losing one; the model's own chat template, but as a field of the service."""


@pytest.fixture(scope="session")
def shared_demo(cluster: Cluster, operator: str) -> Iterator[Service]:
    """Applied when first requested, deleted with its namespace at the end of the session."""
    make_namespace(cluster, SHARED, **{OF_A_TEST: "true"})
    cluster.static_volume(SHARED, CLAIM, DEMO_MODEL)
    service = Service(cluster, SHARED)
    service.apply(**DEMO)
    yield service
    discard_namespace(cluster, SHARED)


@pytest.fixture
def demo(cluster: Cluster, shared_demo: Service, request: pytest.FixtureRequest) -> Iterator[Service]:
    """The shared service with one engine and two routers, all ready, whatever a test before did to it."""
    failed = request.session.testsfailed
    shared_demo.apply(**DEMO)
    shared_demo.wait_until_converged(1)
    yield shared_demo
    if request.session.testsfailed > failed and (folder := os.environ.get("E2E_DIAGNOSTICS")):
        dump_namespace(cluster, SHARED, Path(folder) / request.node.name)


@pytest.fixture
def private(cluster: Cluster, operator: str, namespace: str) -> Service:
    """A service of the test's own, in a namespace with the demo model's claim; not applied yet."""
    cluster.static_volume(namespace, CLAIM, DEMO_MODEL)
    return Service(cluster, namespace)
