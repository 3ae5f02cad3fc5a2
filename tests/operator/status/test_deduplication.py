"""An unchanged cluster writes nothing, whatever numbers kubelets, schedulers and engines report."""

from __future__ import annotations

import copy
import json
import random
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operator_support.mini_cluster import MiniCluster, engine_state, memory, service

from blade_operator.model import pods as podutil
from blade_operator.model.objects import Object, Ref
from blade_operator.status.deduplication import deduplicate, round_down, round_total
from blade_protocol.check import CheckItem
from blade_protocol.fetch import FetchProgress

FOLDER = Path(__file__).parent / "recorded"
PODS: dict[str, list[Object]] = json.loads((FOLDER / "pods.json").read_text())
QUOTA: Object = json.loads((FOLDER / "deployments.json").read_text())["quota"]
READY = "ready"
SPEC = {"model": {"uri": "hf://Qwen/Qwen3-8B"}, "engine": {"resources": {"limits": {"memory": "16Mi"}}}}

worlds = st.fixed_dictionaries(
    {
        "cases": st.lists(st.sampled_from([*sorted(PODS), READY, READY]), min_size=1, max_size=4),
        "quota": st.booleans(),
        "rejected": st.booleans(),
        "check": st.booleans(),
        "seed": st.integers(0, 1 << 16),
    }
)


def make(world: dict[str, Any]) -> MiniCluster:
    cluster = MiniCluster(service(SPEC | {"replicas": len(world["cases"])}))
    cluster.now = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)
    cluster.reconcile()
    cluster.run_controllers()
    for pod, case in zip(cluster.engine_pods, world["cases"], strict=True):
        if case == READY:
            cluster.become_ready(pod)
            cluster.engines[pod["metadata"]["name"]] = engine_state(pod, memory())
            continue
        pod["status"] = copy.deepcopy(PODS[case][-1])
        pod["spec"]["nodeName"] = "node1"
        pod["metadata"]["creationTimestamp"] = "2026-11-21T19:31:17Z"
        if world["check"] and (check := podutil.container(pod, "check")) and check.last_termination:
            detail = "slowest device 4.02 ms, fastest 1.31 ms"
            cluster.check(pod, CheckItem(name="check_flops_diff", status="FAILED", detail=detail), exit_code=1)
    if world["quota"]:
        next(obj for ref, obj in cluster.objects.items() if "-engine-" in ref.name and ref.kind == "Deployment")[
            "status"
        ] = copy.deepcopy(QUOTA)
    if world["rejected"]:
        cluster.rejected = {
            Ref("Deployment", "team", "qwen-router"): "exceeded quota: small, used: cpu=3, limited: cpu=4"
        }
    for _ in range(3):  # the first reconcile may be a step: the first size is then the previous one
        cluster.reconcile()
    return cluster


def stir(cluster: MiniCluster, dice: random.Random) -> None:
    """What differs from one reconcile to the next when nothing has happened."""
    cluster.now += timedelta(seconds=dice.choice([1, 20, 400, 90_000]))
    number = lambda match: str(dice.randint(1, 60))  # noqa: E731
    for pod in cluster.pods:
        status = pod["status"]
        for entry in status.get("conditions", ()):
            entry["lastProbeTime"] = cluster.now.isoformat()
            if entry["type"] == "PodScheduled" and entry["status"] == "False":
                entry["message"] = re.sub(r"(?<=/)\d+(?= nodes)|\d+(?= Insufficient)", number, entry["message"])
        for field in ("initContainerStatuses", "containerStatuses"):
            for container in status.get(field, ()):
                container["containerID"] = f"containerd://{dice.getrandbits(256):064x}"
                if container["restartCount"] >= 5:
                    container["restartCount"] = dice.randint(5, 9)
                waiting = container["state"].get("waiting", {})
                if "message" in waiting:
                    text = re.sub(
                        r"back-off \w+", f"back-off {dice.choice(['10s', '20s', '2m40s'])}", waiting["message"]
                    )
                    waiting["message"] = re.sub(r"(?<=->)[\d.:]+|(?<=on )[\d.]+", "10.0.0.53", text)
                for end in (container["state"].get("terminated"), (container.get("lastState") or {}).get("terminated")):
                    if end and "slowest" in end.get("message", ""):
                        end["message"] = re.sub(
                            r"\d\.\d\d", f"{dice.randint(1, 9)}.{dice.randint(10, 99)}", end["message"]
                        )
    dice.shuffle(cluster.pods)
    for obj in cluster.objects.values():
        if "ReplicaFailure" in json.dumps(obj.get("status", {})):
            text = json.dumps(obj["status"]).replace("pods=0", f"pods={dice.randint(0, 9)}")
            obj["status"] = json.loads(re.sub(r"d-6dbcffb55c-\w+", f"d-6dbcffb55c-{dice.randint(10, 99)}", text))
    cluster.rejected = {ref: re.sub(r"=\d", f"={dice.randint(1, 9)}", text) for ref, text in cluster.rejected.items()}
    for name, state in list(cluster.engines.items()):
        pod = next(pod for pod in cluster.pods if pod["metadata"]["name"] == name)
        cluster.engines[name] = engine_state(pod, memory(weights=(1 << 30) + dice.randint(0, 1 << 24)))
        assert state.memory is not None
    if dice.random() < 0.3:
        cluster.engines.clear()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds)
def test_an_unchanged_world_is_written_once(world: dict[str, Any]) -> None:
    cluster = make(world)
    dice = random.Random(world["seed"])
    stir(cluster, dice)
    cluster.reconcile()  # ages: what was patience is now a failure
    for _ in range(5):
        stir(cluster, dice)
        plan = cluster.reconcile()
        assert (plan.status, plan.events, plan.delete) == (None, [], [])


@pytest.mark.parametrize("case", ["crash-loop", "oom-killed", "crash-loop-check"])
def test_a_thousand_restarts_are_a_dozen_writes(case: str) -> None:
    cluster = make({"cases": [case], "quota": False, "rejected": False, "check": False})
    [pod] = cluster.engine_pods
    written = events = 0
    for restarts in range(5, 1000, 9):
        for field in ("initContainerStatuses", "containerStatuses"):
            for container in pod["status"].get(field, ()):
                container["restartCount"] = restarts if container["restartCount"] else 0
        plan = cluster.reconcile()
        written += plan.status is not None
        events += len(plan.events)
    assert written == events == 6  # 10, 20, 50, 100, 200, 500


def test_downloads_of_the_same_stretch_are_one_write() -> None:
    cluster = MiniCluster(service(SPEC))
    cluster.reconcile()
    cluster.run_controllers()
    [pod] = cluster.engine_pods
    pod["status"]["initContainerStatuses"][0]["state"] = {"running": {}}
    writes = 0
    for step in range(100):
        progress = FetchProgress(model="m", bytes=1000, bytes_done=400 + step // 3, bytes_per_second=10 + step)
        cluster.downloads = {pod["metadata"]["name"]: progress}
        cluster.now += timedelta(seconds=60)
        writes += cluster.reconcile().status is not None
    assert writes == 1


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("0/2 nodes are available: 1 Insufficient cpu", "0/30 nodes are available: 12 Insufficient cpu", True),
        ("1 Insufficient cpu", "1 Insufficient memory", False),
        ("used: pods=0", "used: pods=14", True),
        ("dial 10.0.0.1:53", "dial 10.0.0.7:41233", True),
        ("pod qwen-12 failed", "pod qwen-13 failed", False),
        ("model a1", "model a2", False),
    ],
)
def test_only_figures_that_stand_for_themselves_are_noise(before: str, now: str, same: bool) -> None:
    assert deduplicate(before, now) == (before if same else now)


def test_counts_are_exact_while_small() -> None:
    counts = [0, 1, 4, 5, 6, 9, 10, 19, 20, 49, 99, 100, 5000, -1]
    assert [round_down(count) for count in counts] == [0, 1, 4, 5, 5, 5, 10, 10, 20, 20, 50, 100, 1000, 0]


def test_totals_are_steps() -> None:
    totals = [0, 999, 1000, 1999, 2000, 4999, 5000, 9999, 10_000, 199_999, 7_000_000_000]
    assert [round_total(total) for total in totals] == [
        0, 0, 1000, 1000, 2000, 2000, 5000, 5000, 10_000, 100_000, 5_000_000_000,
    ]  # fmt: skip
