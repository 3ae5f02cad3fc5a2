"""Engines of several processes, on the real node: on two machines, a member that is killed under load, scaling and a
change by groups; in one pod, a rank that is killed under load."""

from __future__ import annotations

from e2e.support.load import Load
from e2e.support.node import kill_container, kill_process
from e2e.support.service import Object, Service, is_ready

STAGES = {"gpus": {"pipelineParallel": 2, "nodes": 2}, "shmSize": "1Gi"}
RANKS = {"gpus": {"tensorParallel": 2}, "shmSize": "1Gi"}


def members(service: Service) -> list[Object]:
    pods = service.objects("pods", "serving.bladellm.io/replica-group")
    return sorted(filter(is_ready, pods), key=lambda pod: str(pod["metadata"]["name"]))


def wait_whole(service: Service, groups: int) -> None:
    def whole() -> bool:
        status = service.status()
        pods = service.objects("pods", "serving.bladellm.io/replica-group")
        done = (status.get("phase"), status.get("readyReplicas")) == ("Ready", groups)
        return done and not status["revision"]["updating"] and len(pods) == len(members(service)) == 2 * groups

    service.until(whole, f"with {groups} engines of two machines", 180)


def test_groups_fail_scale_and_change_as_one(private: Service) -> None:
    private.apply(engine=STAGES, replicas=2)
    wait_whole(private, 2)
    with private.reach() as url, Load(url) as load:
        load.more()
        target = members(private)[1]  # the follower of the first
        kill_container(private.cluster, target, "engine")
        load.more()
        private.until(
            lambda: target["metadata"]["uid"] not in {p["metadata"]["uid"] for p in members(private)}, "rid of it"
        )
        wait_whole(private, 2)
        load.more()
        private.kubectl("scale", "llm", "demo", "--replicas=1")
        wait_whole(private, 1)
        private.kubectl("scale", "llm", "demo", "--replicas=2")
        wait_whole(private, 2)
        load.more()
        before = {pod["metadata"]["uid"] for pod in members(private)}
        private.apply(engine={**STAGES, "maxNumSeqs": 4}, replicas=2)
        private.until(lambda: not before & {pod["metadata"]["uid"] for pod in members(private)}, "changed", 300)
        wait_whole(private, 2)
        load.more()
    assert load.bad == []


def test_a_rank_that_is_killed_ends_its_engine_and_no_stream(private: Service) -> None:
    private.apply(engine=RANKS, replicas=2)
    private.until(lambda: private.status().get("readyReplicas") == 2, "with two engines of two ranks", 180)
    target = private.pods("engine")[0]
    with private.reach() as url, Load(url) as load:
        load.more()
        kill_process(private.cluster, target, "engine", "blade_llm.engine.ranks.worker")
        load.more()
        name = target["metadata"]["name"]

        def restarted() -> bool:
            [pod] = [each for each in private.pods("engine") if each["metadata"]["name"] == name]
            return is_ready(pod) and all(each["restartCount"] == 1 for each in pod["status"]["containerStatuses"])

        private.until(restarted, "with the engine of the killed rank back", 180)
        load.more()
    assert load.bad == []
