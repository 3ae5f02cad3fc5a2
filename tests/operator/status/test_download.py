"""Progress of a download in the status: in steps worth a write, with the time left, and as the size at its end."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import jsonschema
import msgspec
import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator.model.objects import Object
from blade_operator.spec.crd.schema import service_schema
from blade_operator.status.download import describe
from blade_protocol.fetch import FetchProgress, FetchReport

GIB = 1 << 30
SIZE = int(15.3 * GIB)
MODEL = "hf://Qwen/Qwen3-8B"
SCHEMA = jsonschema.Draft202012Validator(service_schema()["properties"]["status"])


class World(MiniCluster):
    """A service whose engines download."""

    def __init__(self, replicas: int = 1) -> None:
        super().__init__(service({"model": {"uri": MODEL}, "replicas": replicas}))
        self.reconcile()
        self.run_controllers()
        for pod in self.engine_pods:
            self.fetch(pod)["state"] = {"running": {}}

    def fetch(self, pod: Object) -> Any:
        return pod["status"]["initContainerStatuses"][0]

    def at(self, share: float, seconds: float = 10, speed: int = 37_580_964, number: int = 0) -> Any:
        """The download of one pod is this far, ``seconds`` later; returns the status if one is written."""
        self.now += timedelta(seconds=seconds - 1)
        name = self.engine_pods[number]["metadata"]["name"]
        done = math.ceil(share * SIZE)
        self.downloads[name] = FetchProgress(
            model=MODEL, files=9, files_done=4, bytes=SIZE, bytes_done=done, bytes_per_second=speed
        )
        status = self.reconcile().status
        if status is not None:
            SCHEMA.validate(status)
        return status

    def message(self) -> str:
        conditions = {entry["type"]: entry for entry in self.service["status"]["conditions"]}
        assert (conditions["Ready"]["reason"], conditions["Ready"]["message"]) == (
            conditions["ModelCached"]["reason"],
            conditions["ModelCached"]["message"],
        )
        return str(conditions["ModelCached"]["message"])

    @property
    def model(self) -> Any:
        return self.service["status"].get("model")


def test_how_far_it_is_and_what_is_left() -> None:
    world = World()
    assert world.at(0.426) is not None
    assert world.message() == "downloading: 42 % of 15.3 GiB, 2.10 GiB/min, 5 min left"
    assert {key: value for key, value in world.model.items() if key != "observedAt"} == {
        "bytes": SIZE, "downloaded": math.ceil(0.426 * SIZE), "bytesPerSecond": 37_580_964, "etaSeconds": 251,
    }  # fmt: skip
    world.at(0.995)
    assert world.message() == "downloading: 99 % of 15.3 GiB, 2.10 GiB/min, 3 s left"
    world.at(0.5, speed=1000)
    assert world.message().endswith("58.6 KiB/min, 2282 h left")


def test_only_steps_of_five_percent_and_five_seconds_are_written() -> None:
    world = World()
    assert world.at(0.10) is not None
    assert [world.at(share, 6) for share in (0.11, 0.12, 0.13, 0.149)] == [None] * 4
    assert world.at(0.16, 6) is not None
    assert world.at(0.90, 3) is None
    assert world.at(0.95, 3) is not None
    # an operator that starts anew reads from the status when it wrote last
    writes = sum(World.at(world, share / 200, 5) is not None for share in range(201))
    assert writes <= 20


def test_a_download_that_halts_and_resumes_is_reported() -> None:
    world = World()
    world.at(0.5)
    assert world.at(0.5, speed=0) is not None
    assert world.message() == "downloading: 50 % of 15.3 GiB, nothing arrives at the moment"
    assert world.at(0.5, speed=0) is None
    assert world.at(0.51) is not None
    assert world.message().startswith("downloading: 51 % of 15.3 GiB, 2.10 GiB/min")


def test_the_start_and_a_prompt_without_a_response() -> None:
    world = World()
    world.reconcile()
    assert world.message() == f"{MODEL} is being downloaded"
    assert world.model is None
    world.at(0.0, speed=0)
    assert world.message() == "downloading: 0 % of 15.3 GiB"
    world.at(0.3)
    before = world.message()
    world.downloads.clear()
    world.now += timedelta(minutes=1)
    assert world.reconcile().status is None
    assert world.message() == before


def test_the_furthest_download_is_reported() -> None:
    world = World(replicas=2)
    world.at(0.10, number=0)
    world.at(0.60, number=1)
    world.at(0.12, number=0)
    assert world.message().startswith("downloading: 60 %")


def finish(world: World, size: int, number: int = 0) -> None:
    pod = world.engine_pods[number]
    report = FetchReport(model=MODEL, ready=True, folder="/models/x", files=9, bytes=size)
    world.terminate_container(pod, "fetch", 0, msgspec.json.encode(report).decode())
    world.downloads.clear()
    world.reconcile()


def test_what_is_done_is_its_size_and_stays() -> None:
    world = World(replicas=2)
    world.at(0.9)
    finish(world, SIZE + 7)
    assert world.model == {"bytes": SIZE + 7, "downloaded": SIZE + 7}
    finish(world, SIZE + 9, number=1)
    assert world.model == {"bytes": SIZE + 7, "downloaded": SIZE + 7}
    assert world.plan().status is None


def test_another_model_does_not_inherit_the_figures() -> None:
    world = World()
    finish(world, SIZE)
    world.edit(model={"uri": "hf://Qwen/Qwen3-0.6B"})
    world.reconcile()
    world.reconcile()
    assert world.model is None


def test_a_download_is_requeued_soon_and_only_while_it_runs() -> None:
    world = World()
    assert world.plan().requeue_after == 5
    finish(world, SIZE)
    assert world.plan().requeue_after is None


def test_a_failed_download_that_gets_on_is_no_longer_called_failed() -> None:
    world = World()
    pod = world.engine_pods[0]
    for _ in range(3):
        world.terminate_container(pod, "fetch", 1, "no route to host")
        world.reconcile()
        world.fetch(pod)["state"] = {"running": {}}
        world.downloads.clear()
        plan = world.reconcile()
        assert reason(world, "ModelCached") == "DownloadFailed"
        assert not [event for event in plan.events if event.reason == "Downloading"]
    assert reason(world, "Progressing") == "Stalled"
    world.at(0.2)
    assert reason(world, "ModelCached") == "Downloading"
    assert reason(world, "Progressing") == "Starting"


def reason(world: World, kind: str) -> str:
    return next(entry["reason"] for entry in world.service["status"]["conditions"] if entry["type"] == kind)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (61, "2 min"), (7199, "120 min"), (7200, "2 h")]
)
def test_times_read_well(seconds: int, text: str) -> None:
    model = {"bytes": 1 << 20, "downloaded": 1 << 19, "bytesPerSecond": 8, "etaSeconds": seconds}
    assert describe(model) == f"downloading: 50 % of 1.00 MiB, 480 B/min, {text} left"
