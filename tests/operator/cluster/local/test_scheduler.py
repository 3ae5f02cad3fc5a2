"""GPUs of the local runtime: each pod has its own, and one for which none is left waits and says so."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from operator_support.jobs import job
from operator_support.local import local, until
from operator_support.objects import container, deployment

from blade_operator.cluster.local import scheduler
from blade_operator.model.objects import Object, Ref
from blade_operator.status.failures.pod_failures import pod_failure

GPU = {"limits": {"nvidia.com/gpu": "1"}}


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")


def on_gpus(replicas: int, resources: Object = GPU) -> Object:
    return deployment(replicas=replicas, containers=[container("engine", resources=resources)])


def device(pod: Object) -> str:
    return scheduler.variable_of(pod, "CUDA_VISIBLE_DEVICES")


async def test_each_engine_has_a_gpu_of_its_own_and_more_than_there_are_wait(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(on_gpus(3))
        ready = await until(lambda: found if len(found := runtime.ready()) == 2 else None)
        assert sorted(map(device, ready)) == ["3", "5"]
        [waiting] = [pod for pod in runtime.pods() if "nodeName" not in pod["spec"]]
        failure = pod_failure(waiting, datetime.now(UTC))
        assert failure is not None
        assert (failure.reason, failure.message, failure.stuck) == (
            "Unschedulable",
            "cannot be scheduled: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu (spec.engine.gpus)",
            True,
        )
        # It gets the device of the next one that ends.
        gone = ready[0]
        await runtime.runtime.cluster.delete(Ref.of(gone))
        await until(lambda: waiting["metadata"]["name"] in {pod["metadata"]["name"] for pod in runtime.ready()})
        assert sorted(map(device, runtime.ready())) == ["3", "5"]
        await runtime.apply(on_gpus(0))
        await until(lambda: runtime.pods() == [])  # one of them never ran


async def test_an_engine_of_two_ranks_gets_two_gpus_or_waits(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(on_gpus(2, {"limits": {"nvidia.com/gpu": "2"}}))
        [ready] = await until(lambda: runtime.ready() if len(runtime.pods()) == 2 else None)
        assert device(ready) == "3,5"
        [waiting] = [pod for pod in runtime.pods() if "nodeName" not in pod["spec"]]
        assert device(waiting) == ""


async def test_a_job_that_is_done_has_no_gpu_any_more(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        done = job("pass")
        done["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
        await runtime.apply(done)
        await until(lambda: runtime.get("Job", "work").get("status", {}).get("succeeded"))
        await runtime.apply(on_gpus(2))
        engines = await until(lambda: found if len(found := runtime.ready()) == 2 else None)
        assert sorted(map(device, engines)) == ["3", "5"]


async def test_pods_without_gpus_are_not_limited_and_unknown_devices_are_not_there(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment())
        (pod,) = await runtime.ready_pods(1)
        assert device(pod) == ""
        assert scheduler.devices("example.com/npu") == ()


def test_without_the_variable_devices_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert scheduler.devices("nvidia.com/gpu") == ("3", "5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert scheduler.devices("nvidia.com/gpu") == ()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(scheduler, "Path", lambda *parts: tmp_path)
    assert scheduler.devices("nvidia.com/gpu") == ("0", "1")


@pytest.mark.parametrize(("value", "found"), [("-1", ()), ("", ()), ("0,1", ("0", "1")), ("2,-1,3", ("2",))])
def test_the_variable_is_read_as_drivers_read_it(
    value: str, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert scheduler.devices("nvidia.com/gpu") == found


def test_none_of_a_resource_needs_no_device() -> None:
    limits = {"nvidia.com/gpu": "0", "example.com/fpga": 0, "memory": "1Gi"}
    pod = {"spec": {"containers": [{"name": "engine", "resources": {"limits": limits}}]}}
    assert scheduler.wanted(pod) == {}
