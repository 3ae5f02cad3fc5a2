"""Scaled and edited while clients send requests without a pause: no request fails, and no response is wrong."""

from __future__ import annotations

import json

from e2e.support.load import Load, LongStream
from e2e.support.service import Object, Service, names


def scale(service: Service, replicas: int) -> None:
    service.kubectl("scale", "llm", service.name, f"--replicas={replicas}")


def edit(service: Service, old: str, new: str) -> None:
    """``kubectl edit`` with an editor that replaces words."""
    editor = f"KUBE_EDITOR=sed -i 's/{old}/{new}/'"
    done = service.cluster.run(["env", editor, "kubectl", "-n", service.namespace, "edit", "llm", service.name])
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("edited\n")


def numbers(service: Service) -> dict[str, int]:
    """Number of every ControllerRevision, by revision."""
    found = service.objects("controllerrevisions.apps")
    return {str(each["metadata"]["labels"]["serving.bladellm.io/revision"]): int(each["revision"]) for each in found}


def test_scale_to_three_and_back_under_load(demo: Service) -> None:
    [first] = demo.pods("engine")
    with demo.reach() as url, Load(url) as load:
        scale(demo, 3)
        demo.wait_until_converged(3)
        three = names(demo.pods("engine"))
        assert first["metadata"]["name"] in three
        # Each of them serves.
        demo.until(lambda: {result.endpoint for result in load.good} == set(three), "serving with three engines")
        assert demo.kubectl("get", "llm", "demo", "-o", "jsonpath={.status.replicas}") == "3"

        scale(demo, 1)
        demo.wait_until_converged(1)
        [last] = names(demo.pods("engine"))
        assert last in three
        load.more()
        before = len(load.results)
        load.more()
    assert load.bad == []
    assert {result.endpoint for result in load.results[before:]} == {last}


def test_to_zero_and_back(demo: Service) -> None:
    scale(demo, 0)
    demo.until(lambda: demo.status()["phase"] == "ScaledToZero" and not demo.pods("engine"), "at zero")
    assert demo.condition("Ready")["reason"] == "ScaledToZero"
    scale(demo, 1)
    demo.wait_until_converged(1)


def test_an_edit_makes_a_new_revision_under_load_and_back_again(demo: Service) -> None:
    def deployment() -> Object:
        only: Object
        [only] = demo.engine_deployments()
        return only

    old, first = demo.status()["revision"]["current"], deployment()
    known = numbers(demo)
    with demo.reach() as url, Load(url) as load:
        edit(demo, "maxNumSeqs: 8", "maxNumSeqs: 6")
        demo.until(lambda: demo.status()["revision"]["current"] != old, "at a new revision")
        demo.wait_until_converged(1)
        new = demo.status()["revision"]["current"]
        changed = deployment()
        load.more()
        assert changed["metadata"]["name"] == f"demo-engine-{new}" != first["metadata"]["name"]
        [engine] = changed["spec"]["template"]["spec"]["containers"]
        position = engine["args"].index("--max_num_seqs")
        assert engine["args"][position + 1] == "6"
        assert demo.status()["revision"] == {
            "current": new, "previous": old, "updating": False, "outdated": False, "stable": new,
        }  # fmt: skip
        assert numbers(demo) == {**known, new: max(known.values()) + 1}

        edit(demo, "maxNumSeqs: 6", "maxNumSeqs: 8")
        demo.until(lambda: demo.status()["revision"]["current"] == old, "back at the first revision")
        demo.wait_until_converged(1)
        assert deployment()["metadata"]["name"] == first["metadata"]["name"]
        assert numbers(demo) == {**known, new: max(known.values()) + 1, old: max(known.values()) + 2}
        load.more()
    assert load.bad == []


def test_a_change_that_touches_no_engine_restarts_none(demo: Service) -> None:
    pods = names(demo.pods("engine"))
    with demo.reach() as url, Load(url) as load:
        demo.kubectl("patch", "llm", "demo", "--type=merge", "-p", '{"spec":{"router":{"policy":"roundRobin"}}}')
        # The routers follow it without a restart, through the API.
        demo.until(lambda: any(result.route.startswith("round-robin") for result in load.good[-5:]), "routed in turn")
        assert names(demo.pods("engine")) == pods
    assert load.bad == []


def test_new_routers_replace_those_of_before_under_load_and_streams_finish(demo: Service) -> None:
    """As an upgrade of the release does, whose routers have another image."""
    before, engines = names(demo.pods("router")), names(demo.pods("engine"))
    template = {"metadata": {"annotations": {"example.org/release": "next"}}}
    with demo.reach() as url, Load(url) as load:
        stream = LongStream(url, 700).first()
        demo.kubectl(
            "patch", "llm", "demo", "--type=merge", "-p", json.dumps({"spec": {"router": {"podTemplate": template}}})
        )
        demo.until(lambda: demo.condition("Reconciling")["status"] == "True", "replacing its routers", 30)
        demo.until(lambda: not set(before) & set(names(demo.pods("router"))), "with other routers", 120)
        demo.wait_until_converged()
        load.more()
        ended = stream.wait()
    assert load.bad == []
    assert (ended.outcome, ended.tokens) == ("ok", 700)
    assert names(demo.pods("engine")) == engines
