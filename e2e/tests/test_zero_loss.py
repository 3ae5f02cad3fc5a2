"""No change to a service on the node loses, truncates or alters one request (docs/zero-loss.md).

``SOAK_RUNS=20 python -m e2e -k zero_loss -s`` makes all changes twenty times, and shows what was counted during each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from e2e.support.chart import NAMESPACE as OPERATOR
from e2e.support.images import Images
from e2e.support.service import Service, names
from e2e.support.steady_load import SteadyLoad, Tally, questions

Change = Callable[[Service], None]

RUNS = int(os.environ.get("SOAK_RUNS", "1"))


def patch(service: Service, spec: dict[str, Any]) -> None:
    service.kubectl("patch", "llm", service.name, "--type=merge", "-p", json.dumps({"spec": spec}))


def patched(spec: dict[str, Any]) -> Change:
    """A change of the spec, and what Kubernetes and the operator make of it."""

    def change(service: Service) -> None:
        patch(service, spec)
        service.wait_until_converged(timeout=180)

    return change


def router_image(image: str) -> Change:
    def change(service: Service) -> None:
        before = names(service.pods("router"))
        patch(service, {"router": {"image": image}})
        service.until(lambda: not set(before) & set(names(service.pods("router"))), "with other routers", 120)
        service.wait_until_converged()

    return change


def scaled(replicas: int) -> Change:
    return patched({"replicas": replicas})


def evicted(role: str) -> Callable[[Service], None]:
    """As ``kubectl drain`` does it with each pod of a node, by the Eviction API, budgets and all."""

    def change(service: Service) -> None:
        name = names(service.pods(role))[0]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{service.namespace}/pods/{name}/eviction"
        service.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(eviction))
        service.until(lambda: name not in names(service.pods(role)), f"rid of {name}", 120)
        service.wait_until_converged()

    return change


def engines_replaced_while_operators_go(service: Service) -> None:
    patch(service, {"engine": {"maxNumSeqs": 6}})
    service.until(lambda: service.status()["revision"]["updating"], "updating")
    mine = ("-n", OPERATOR, "delete", "pod", "-l", "app.kubernetes.io/name=bladellm-operator")
    service.cluster.kubectl(*mine, "--grace-period=0", "--force", "--wait=false")
    service.wait_until_converged(timeout=180)
    service.cluster.kubectl("-n", OPERATOR, "rollout", "status", "deployment", "--timeout=90s")


def the_same(image: str) -> str:
    """The image by another name: for Kubernetes, and for the operator, it is another one."""
    return image if "/" in image.partition("/")[2] else f"docker.io/{image}"


@pytest.mark.timeout(600 * RUNS)
def test_no_change_of_a_service_loses_a_request(demo: Service, images: Images) -> None:
    changes: dict[str, Change] = {
        "scaled from 1 to 4": scaled(4),
        "scaled from 4 to 1": scaled(1),
        "another engine image": patched({"engine": {"image": the_same(images.engine)}}),
        "another router image": router_image(the_same(images.operator)),
        "engines replaced, operators killed": engines_replaced_while_operators_go,
        "scaled from 1 to 2": scaled(2),
        "an engine evicted": evicted("engine"),
        "a router evicted": evicted("router"),
        "all of it taken back": patched(
            {"replicas": 1, "engine": {"image": None, "maxNumSeqs": 8}, "router": {"image": None}}
        ),
    }
    with demo.reach() as url, SteadyLoad(url, questions(lengths=(1, 8, 30, 120))) as load:
        counted = dict.fromkeys(changes, Tally(0, 0, 0, 0, 0))
        for run in range(1, RUNS + 1):
            for what, change in changes.items():
                before = load.tally()
                change(demo)
                load.more()
                counted[what] = counted[what].plus(load.tally().since(before))
                print(f"{what:36} {run:3} runs, {counted[what]}", flush=True)
                load.check()
    load.check()
