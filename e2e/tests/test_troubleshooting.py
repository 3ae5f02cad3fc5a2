"""Services that cannot come up: status names the cause and the field to change, and docs/troubleshooting.md shows it.

All are applied at once, since most need a minute until Kubernetes gives up on them. ``UPDATE_DOCS=1`` writes the page.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.base import Cluster
from e2e.cluster.small_images import SHELL_IMAGE
from e2e.conftest import make_namespace
from e2e.support import description, troubleshooting
from e2e.support.diagnostics import dump_namespace
from e2e.support.failure_cases import FAILURE_CASES, GPUS, QUOTA, REGISTRY, FailureCase
from e2e.support.hub_pod import Hub, secret
from e2e.support.images import Images
from e2e.support.namespaces import OF_A_TEST, discard_namespace
from e2e.support.node import own_node
from e2e.support.restricted import restricted_pod
from e2e.support.service import CLAIM, DEMO_MODEL, Service
from e2e.support.waiting import until

PATIENCE = 240
"""Seconds for the slowest: an engine counts as looping after its third restart, with pauses in between."""
TOKEN = "hf_secret"
"""What the hub wants to see."""

EMPTY_REGISTRY = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    default_request_version = "HTTP/1.1"  # so that containerd, which tries TLS first, sees that this is HTTP
    def do_GET(self):
        self.send_error(404)
    do_HEAD = do_GET
    def log_message(self, *args):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port)
server.serve_forever()
"""


@dataclass(frozen=True)
class FailingServices:
    """Where the services are, and what stands on the page for names that differ each time."""

    cluster: Cluster
    namespace: str
    names: dict[str, str]

    def final_status(self, case: FailureCase) -> dict[str, Any]:
        """The status once it says that nothing will change by itself, with a router that is ready if there is any."""
        service = Service(self.cluster, self.namespace, case.name)

        def observe() -> dict[str, Any]:
            status = service.status()
            conditions = {entry["type"]: entry["status"] for entry in status.get("conditions", ())}
            routed = conditions.get("RouterReady") == "True" or case.phase == "Invalid"
            return status if routed and status["phase"] == case.phase else {}

        return service.until(observe, f"is reported as {case.phase}", PATIENCE)

    def printed(self, case: FailureCase) -> tuple[str, str]:
        """What ``kubectl get`` and ``describe`` print, made repeatable."""
        get = self.cluster.kubectl("-n", self.namespace, "get", "llm", case.name)
        describe = self.cluster.kubectl("-n", self.namespace, "describe", "llm", case.name)
        return description.table(get, self.names), description.extract(describe, self.names)


@pytest.fixture(scope="module")
def failing_services(
    cluster: Cluster, operator: str, images: Images, request: pytest.FixtureRequest
) -> Iterator[FailingServices]:
    """All services, applied at once in a namespace without free GPUs, with a claim, and a hub that wants a token."""
    own_node(cluster)  # the page has the words of this node, with its GPUs and its way to a registry
    cluster.kubectl("delete", "nodes", "--selector=type=kwok")  # the scheduler would speak of them
    namespace = f"failing-{secrets.token_hex(4)}"
    make_namespace(cluster, namespace, **{OF_A_TEST: "true"})
    failed = request.session.testsfailed
    with empty_registry(cluster) as registry:
        try:
            cluster.static_volume(namespace, CLAIM, DEMO_MODEL)
            use_up_gpus(cluster, namespace)
            hub = Hub(cluster, namespace)
            hub.start(images.operator, bytes_per_second=10**9, token=TOKEN)
            env = hub.environment()
            services = [case.manifest(registry, env) for case in wanted(request.session)]
            document = json.dumps({"apiVersion": "v1", "kind": "List", "items": services})
            cluster.kubectl("-n", namespace, "apply", "-f", "-", input=document)
            yield FailingServices(cluster, namespace, {registry: REGISTRY, namespace: description.NAMESPACE})
        finally:
            if request.session.testsfailed > failed and (folder := os.environ.get("E2E_DIAGNOSTICS")):
                dump_namespace(cluster, namespace, Path(folder) / namespace)
            discard_namespace(cluster, namespace)


def wanted(session: pytest.Session) -> list[FailureCase]:
    """Failure cases of the tests that this session runs."""
    calls = [item.callspec for item in session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    cases = (call.params.get("case") for call in calls)
    return list(dict.fromkeys(case for case in cases if isinstance(case, FailureCase)))


@contextmanager
def empty_registry(cluster: Cluster) -> Iterator[str]:
    """Address of a registry that has no image, where the node reaches it."""
    server = cluster.popen([sys.executable, "-u", "-c", EMPTY_REGISTRY])
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        yield f"localhost:{int(line)}"
    finally:
        server.kill()
        server.wait()


def use_up_gpus(cluster: Cluster, namespace: str) -> None:
    """Somebody has all of one kind, and of the other kind a quota allows none."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": QUOTA}}
    cluster.apply({**quota, "spec": {"hard": {"requests.nvidia.com/gpu": "0"}}}, namespace=namespace)
    [node] = cluster.json("get", "nodes", "-l", "type!=kwok")["items"]
    every = {GPUS: node["status"]["allocatable"][GPUS]}
    command = ["/bin/sleep", "3600"]
    taker = restricted_pod("somebody", SHELL_IMAGE, command, resources={"limits": every})
    cluster.apply(taker, namespace=namespace)

    def done() -> bool:
        pod = cluster.json("-n", namespace, "get", "pod", "somebody")
        used = cluster.json("-n", namespace, "get", "resourcequota", QUOTA).get("status", {}).get("hard")
        return bool(pod["spec"].get("nodeName") and used)

    until(done, 60, "the GPUs are taken and the quota is known")


@pytest.mark.parametrize("case", FAILURE_CASES, ids=lambda case: case.name)
def test_status_names_the_cause_and_the_field(failing_services: FailingServices, case: FailureCase) -> None:
    status = failing_services.final_status(case)
    ready = next(entry for entry in status["conditions"] if entry["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", case.reason)
    assert case.field in ready["message"]
    table, described = failing_services.printed(case)
    blocks = troubleshooting.printed()
    block = troubleshooting.block(case, table, described)
    if troubleshooting.updating():
        troubleshooting.write({**blocks, case.name: block})
        return
    before = troubleshooting.description(blocks.get(case.name, ""))
    assert description.stable(described) == description.stable(before), (
        "docs/troubleshooting.md: run with UPDATE_DOCS=1"
    )


@pytest.mark.parametrize(
    "case",
    [case for case in FAILURE_CASES if case.name == "no-secret"],
    ids=["no-secret"],
)
def test_a_secret_that_comes_later_is_waited_for(failing_services: FailingServices, case: FailureCase) -> None:
    failing_services.final_status(case)
    service = Service(failing_services.cluster, failing_services.namespace, case.name)
    assert service.condition("Ready")["reason"] == "CreateContainerConfigError"
    assert '"hub-token" not found (spec.model.tokenSecretRef)' in service.condition("ModelCached")["message"]
    service.kubectl("create", "-f", "-", input=secret("hub-token", TOKEN))
    service.until(lambda: service.condition("ModelCached").get("reason") == "Downloaded", "downloaded")
    service.wait_until_converged(1)
    assert "failures" not in service.status()


def test_the_rest_of_the_page_matches_the_failure_cases() -> None:
    blocks = troubleshooting.printed()
    assert set(blocks) == {case.name for case in FAILURE_CASES}
    assert troubleshooting.PAGE.read_text() == troubleshooting.render(blocks), "run with UPDATE_DOCS=1"
