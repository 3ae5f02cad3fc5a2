"""What hands and machines do to a running service behind the operator's back: put right, or explained in status."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from e2e.support.load import Load, chat, client
from e2e.support.node import own_node
from e2e.support.service import Object, Service, names
from e2e.support.waiting import until

QUESTION = "What does len do?"


def patch(service: Service, kind: str, name: str, body: Any) -> None:
    how = "json" if isinstance(body, list) else "merge"
    service.kubectl("patch", kind, name, f"--type={how}", "-p", json.dumps(body))


def spec(service: Service, kind: str, name: str) -> Any:
    """What somebody declared of it: all but what the server keeps itself."""
    found = service.json("get", kind, name)
    return found["data"] if kind == "configmap" else found["spec"]


def has(service: Service, kind: str, name: str, part: str, wanted: Any) -> bool:
    return bool(service.json("get", kind, name).get(part) == wanted)


def check_chat(service: Service) -> None:
    with service.reach() as url, client() as http:
        until(lambda: chat(http, url, QUESTION, stream=False).outcome == "ok", 30, "a response")


def test_a_config_map_edited_by_hand(demo: Service) -> None:
    before = spec(demo, "configmap", "demo-router")
    patch(demo, "configmap", "demo-router", {"data": {"router.json": '{"policy": "round-robin"}'}})
    demo.until(lambda: spec(demo, "configmap", "demo-router") == before, "with its own ConfigMap again", 30)


def test_fields_removed_by_hand(demo: Service) -> None:
    pods = names(demo.pods("engine"))
    for kind, name, path in (
        ("deployment", "demo-router", "/spec/template/spec/containers/0/livenessProbe"),
        ("poddisruptionbudget", "demo-engine", "/spec/maxUnavailable"),
        ("networkpolicy", "demo-engine", "/spec/ingress"),
        ("role", "demo-router", "/rules"),
    ):
        part = path.split("/")[1]
        before = demo.json("get", kind, name)[part]
        patch(demo, kind, name, [{"op": "remove", "path": path}])
        repaired = partial(has, demo, kind, name, part, before)
        demo.until(repaired, f"with {path} of {kind} {name} again", 30)
    demo.wait_until_converged(1)
    assert names(demo.pods("engine")) == pods
    check_chat(demo)


def test_items_added_by_hand(demo: Service) -> None:
    """`kubectl` owns them then: an apply of the operator would leave them."""
    pods = names(demo.pods("engine"))
    container = "/spec/template/spec/containers/0"
    for kind, name, path, item in (
        ("deployment", "demo-router", f"{container}/env/-", {"name": "LD_PRELOAD", "value": "/x.so"}),
        ("deployment", "demo-router", "/spec/template/spec/volumes/0", {"name": "added", "emptyDir": {}}),
        ("rolebinding", "demo-router", "/subjects/-", {"kind": "ServiceAccount", "name": "other", "namespace": "x"}),
        ("service", "demo-router", "/spec/ports/-", {"name": "added", "port": 9999, "protocol": "TCP"}),
    ):
        part = path.split("/")[1]
        before = demo.json("get", kind, name)[part]
        patch(demo, kind, name, [{"op": "add", "path": path, "value": item}])
        demo.until(partial(has, demo, kind, name, part, before), f"without what was added at {path} of {kind}", 60)
    demo.wait_until_converged(1)
    assert names(demo.pods("engine")) == pods
    check_chat(demo)


def test_a_deployment_scaled_by_hand(demo: Service) -> None:
    [deployment] = demo.engine_deployments()
    name = deployment["metadata"]["name"]
    pods = names(demo.pods("engine"))
    demo.kubectl("scale", "deployment", name, "--replicas=3")
    demo.until(lambda: spec(demo, "deployment", name)["replicas"] == 1, "at the size of its spec again", 30)
    demo.wait_until_converged(1)
    assert names(demo.pods("engine")) == pods


def test_children_deleted_by_hand(demo: Service) -> None:
    kinds = {
        "service": "demo-router",
        "configmap": "demo-router",
        "serviceaccount": "demo-engine",
        "rolebinding": "demo-router",
        "deployment": "demo-router",
    }
    before = {kind: demo.json("get", kind, name)["metadata"]["uid"] for kind, name in kinds.items()}
    for kind, name in kinds.items():
        demo.kubectl("delete", kind, name, "--wait=false")

    def again(kind: str) -> bool:
        [found] = [*demo.json("get", kind, "--field-selector", f"metadata.name={kinds[kind]}")["items"], None][:1]
        return found is not None and found["metadata"]["uid"] != before[kind]

    demo.until(lambda: all(map(again, kinds)), "with all its objects again")
    demo.wait_until_converged(1)
    check_chat(demo)


def evict(service: Service, pod: str) -> str:
    """What the server says to an eviction, as ``kubectl drain`` requests it; empty when it agrees."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": service.namespace},
    }
    path = f"/api/v1/namespaces/{service.namespace}/pods/{pod}/eviction"
    argv = ["kubectl", "create", "--raw", path, "-f", "-"]
    done = service.cluster.run(argv, input=json.dumps(eviction))
    return done.stderr if done.returncode else ""


def test_an_evicted_engine_drains_and_the_budget_keeps_the_other(demo: Service) -> None:
    demo.kubectl("scale", "llm", "demo", "--replicas=2")
    demo.wait_until_converged(2)

    def allowed() -> int:
        budget: Object = demo.json("get", "poddisruptionbudget", "demo-engine")
        return int(budget["status"]["disruptionsAllowed"])

    with demo.reach() as url, Load(url) as load:
        until(lambda: allowed() == 1, 30, "one disruption allowed")
        first, second = names(demo.pods("engine"))
        assert evict(demo, first) == ""
        assert "would violate the pod's disruption budget" in evict(demo, second)
        demo.wait_until_converged(2)
        assert first not in names(demo.pods("engine"))
        assert second in names(demo.pods("engine"))
        load.more()
    assert load.bad == []


def test_a_node_that_does_not_report_is_named_and_forgiven(demo: Service) -> None:
    pods = [(pod["metadata"]["uid"], pod["status"]["containerStatuses"]) for pod in demo.pods("engine")]
    ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'

    def node() -> str:
        return demo.cluster.kubectl("get", "node", "node1", "-o", ready)

    def reported() -> bool:
        ready = demo.condition("Ready")
        return ready["status"] == "False" and "node1 does not report" in ready["message"]

    with own_node(demo.cluster).frozen("kubelet"):
        demo.until(reported, "reporting which node is lost")
        assert node() == "Unknown"
    demo.until(lambda: node() == "True", "on a node that is Ready again")
    demo.wait_until_converged(1)
    assert [(pod["metadata"]["uid"], pod["status"]["containerStatuses"]) for pod in demo.pods("engine")] == pods
    check_chat(demo)
