"""Engines on several machines in the local runtime: a process for each machine, which meet at a port of this one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from operator_support.local import alive, pid_of, port_of
from operator_support.loop import Loop, loop, manifest

from blade_operator.model.objects import Object
from blade_protocol.labels import ROLE, ROLE_ENGINE

TWO = {"gpus": {"tensorParallel": 2, "nodes": 2}}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Loop]:
    with loop(tmp_path) as each:
        yield each


def members(loop: Loop) -> list[Object]:
    """Engine pods in the order of machines."""
    pods = (pod for pod in loop.objects("Pod") if pod["spec"]["containers"][0]["name"] == "engine")
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


def uids(loop: Loop) -> set[str]:
    return {pod["metadata"]["uid"] for pod in members(loop)}


def flags(pod: Object) -> dict[str, str]:
    """The flags by which the machines of an engine find each other."""
    about: dict[str, Any] = httpx.get(f"http://127.0.0.1:{port_of(pod)}/about", trust_env=False).json()
    argv = about["argv"]
    return {name: argv[argv.index(f"--{name}") + 1] for name in ("nnodes", "node_rank", "dist_init_addr")}


def endpoints(loop: Loop) -> set[str]:
    path = loop.layout.endpoints / "default" / "qwen-engine.json"
    return {endpoint["name"] for endpoint in json.loads(path.read_bytes()).get("endpoints", [])}


def test_the_machines_of_an_engine_meet_and_its_leader_alone_gets_requests(running: Loop, tmp_path: Path) -> None:
    running.start("-f", str(manifest(tmp_path, replicas=2, engine=TWO)))
    running.until(lambda: running.ready("qwen", 2))
    pods = members(running)
    assert [pod["metadata"]["name"].rpartition("-")[2] for pod in pods] == ["0", "1", "0", "1"]
    found = [flags(pod) for pod in pods]
    assert [each["node_rank"] for each in found] == ["0", "1", "0", "1"]
    assert {each["nnodes"] for each in found} == {"2"}
    meetings = [each["dist_init_addr"] for each in found]
    assert meetings[0] == meetings[1] != meetings[2] == meetings[3]
    leaders = [pods[0], pods[2]]
    assert meetings[::2] == [f"127.0.0.1:{port_of(pod, 'meeting')}" for pod in leaders]
    assert [pod["metadata"]["labels"][ROLE] == ROLE_ENGINE for pod in pods] == [True, False, True, False]
    assert endpoints(running) == {pod["metadata"]["name"] for pod in leaders}
    processes = running.processes()
    assert running.interrupt() == 0
    assert not any(map(alive, processes))


@pytest.mark.parametrize("lost", [0, 1], ids=["leader", "follower"])
def test_a_member_that_is_killed_takes_its_group_with_it_and_another_comes(
    running: Loop, tmp_path: Path, lost: int
) -> None:
    running.start("-f", str(manifest(tmp_path, engine=TWO)))
    running.until(lambda: running.ready("qwen"))
    before, programs = uids(running), [pid_of(pod) for pod in members(running)]
    os.kill(programs[lost], signal.SIGKILL)
    running.until(lambda: running.ready("qwen") and len(uids(running)) == 2 and not uids(running) & before)
    assert not any(map(alive, programs))
    [event] = [each for each in running.objects("Event") if each["reason"] == "GroupReplaced"]
    assert f"(machine {lost} of 2) ended with exit 137" in event["message"]


def test_groups_are_scaled_and_changed_as_a_whole(running: Loop, tmp_path: Path) -> None:
    path = manifest(tmp_path, engine=TWO)
    running.start("-f", str(path))
    running.until(lambda: running.ready("qwen"))
    first = uids(running)
    running.command("scale", "qwen", "--replicas", "2")
    running.until(lambda: running.ready("qwen", 2) and len(members(running)) == 4)
    assert first < uids(running)
    running.command("scale", "qwen", "--replicas", "1")
    running.until(lambda: running.ready("qwen") and len(members(running)) == 2)
    before = uids(running)
    running.command("apply", "-f", str(manifest(tmp_path, engine={**TWO, "maxNumSeqs": 3})))
    running.until(lambda: running.ready("qwen") and len(members(running)) == 2 and not uids(running) & before)
