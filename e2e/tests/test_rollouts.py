"""Changes that wait, that fail and that are taken back, while clients send requests: none of them fails."""

from __future__ import annotations

import json
import sys

from e2e.support.load import Load
from e2e.support.service import Service, names


def patch(service: Service, **spec: object) -> None:
    service.kubectl("patch", "llm", service.name, "--type=merge", "-p", json.dumps({"spec": spec}))


def rollout(service: Service, *arguments: str) -> str:
    """``blade_operator rollout`` with the administrator's kubeconfig."""
    command = [sys.executable, "-m", "blade_operator.main", "rollout", *arguments, service.name]
    done = service.cluster.run([*command, "-n", service.namespace, "--kubeconfig", str(service.cluster.kubeconfig)])
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_a_paused_change_waits_goes_on_and_is_undone_under_load(demo: Service) -> None:
    engines, old = names(demo.pods("engine")), demo.status()["revision"]["current"]
    with demo.reach() as url, Load(url) as load:
        rollout(demo, "pause")
        patch(demo, engine={"maxNumSeqs": 7})
        demo.until(lambda: demo.condition("Progressing")["reason"] == "Paused", "holding the change")
        load.more()
        assert names(demo.pods("engine")) == engines
        rollout(demo, "resume")
        rollout(demo, "status", "--timeout", "120")
        assert demo.status()["revision"]["current"] != old
        rollout(demo, "undo")
        rollout(demo, "status", "--timeout", "120")
        demo.wait_until_converged(1)
        assert demo.status()["revision"]["current"] == old
        load.more()
    assert load.bad == []
    assert "current, stable" in rollout(demo, "history")


def test_a_change_that_never_becomes_ready_is_rolled_back_under_load_and_the_spec_stays(demo: Service) -> None:
    engines, old = names(demo.pods("engine")), demo.status()["revision"]["current"]
    with demo.reach() as url, Load(url) as load:
        patch(demo, engine={"extraArgs": ["--no_such_flag"]}, rollout={"progressDeadline": "1m"})
        demo.until(
            lambda: demo.condition("Progressing")["reason"] == "ProgressDeadlineExceeded", "giving the change up", 180
        )
        demo.until(lambda: names(demo.pods("engine")) == engines, "with the engines of before alone")
        revision = demo.status()["revision"]
        assert (revision["stable"], revision["failed"]) == (old, revision["current"])
        assert demo.get()["spec"]["engine"]["extraArgs"] == ["--no_such_flag"]
        assert demo.condition("WorkersReady")["status"] == "True"
        rollout(demo, "undo")
        demo.wait_until_converged(1)
        load.more()
    assert load.bad == []
    assert names(demo.pods("engine")) == engines
    patch(demo, rollout={"progressDeadline": "30m"})
    demo.wait_until_converged(1)
