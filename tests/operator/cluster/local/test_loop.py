"""The control loop as a process: killed and its programs adopted, interrupted, one at a time; nothing is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from operator_support.local import alive, free_port, pid_of, port_of, status_of
from operator_support.loop import Loop, loop, manifest

from blade_operator.model.objects import Object


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Loop]:
    with loop(tmp_path) as each:
        yield each


def _pids(loop: Loop) -> dict[str, int]:
    return {pod["metadata"]["name"]: pid_of(pod, pod["spec"]["containers"][0]["name"]) for pod in loop.objects("Pod")}


def _engine(loop: Loop) -> Object:
    return next(pod for pod in loop.objects("Pod") if "engine" in pod["metadata"]["name"])


def _healthy(pod: Object) -> bool:
    return httpx.get(f"http://127.0.0.1:{port_of(pod)}/health", trust_env=False).status_code == 200


def test_a_killed_control_loop_leaves_everything_serving_and_the_next_one_adopts_it(
    running: Loop, tmp_path: Path
) -> None:
    running.start("-f", str(manifest(tmp_path, replicas=2)))
    running.until(lambda: running.ready("qwen", 2))
    before = _pids(running)
    assert len(before) == 3
    running.kill()
    assert all(map(_healthy, running.objects("Pod")))
    assert "no control loop is running" in running.command("get", "pods")
    assert "start one with `blade_operator local up`" in running.command("scale", "qwen", "--replicas", "1", code=1)

    port, running.port = running.port, free_port()
    running.start()
    running.until(lambda: "Took over 3 running programs" in running.said())
    assert f"They keep their ports ({port})" in running.said()
    assert running.command("scale", "qwen", "--replicas", "1") == "llmservice.serving.bladellm.io/qwen scaled\n"
    running.until(lambda: running.ready("qwen", 1) and len(running.objects("Pod")) == 2)
    assert set(_pids(running).items()) < set(before.items())

    # The loop is not the parent of what it adopted: it sees the end, not the exit code, and does not make one up.
    os.kill(pid_of(_engine(running)), signal.SIGKILL)
    running.until(lambda: status_of(_engine(running), "engine")["restartCount"] == 1)
    end = status_of(_engine(running), "engine")["lastState"]["terminated"]
    assert (end["exitCode"], end["reason"]) == (255, "Unknown")
    assert "its exit code is not known" in end["message"]
    running.until(lambda: running.ready("qwen"))

    left = running.processes()
    assert running.interrupt() == 0
    assert not any(map(alive, [*before.values(), *left]))


def test_the_ranks_of_an_engine_are_adopted_with_it_and_end_with_it(running: Loop, tmp_path: Path) -> None:
    running.environment["FAKE_ENGINE"] = "--ranks 3"
    running.start("-f", str(manifest(tmp_path)))
    running.until(lambda: running.ready("qwen"))
    programs = {*_pids(running).values()}
    ranks = running.processes() - programs
    assert len(ranks) == 2
    running.kill()
    running.start()
    running.until(lambda: "Took over 2 running programs" in running.said())
    assert running.processes() == programs | ranks  # the new loop takes none of them for a stray
    os.kill(pid_of(_engine(running)), signal.SIGKILL)
    running.until(lambda: not any(map(alive, ranks)))
    running.until(lambda: running.ready("qwen"))
    assert running.interrupt() == 0
    assert running.processes() == set()


def test_a_program_that_ended_while_no_loop_ran_is_started_again(running: Loop, tmp_path: Path) -> None:
    running.start("-f", str(manifest(tmp_path)))
    running.until(lambda: running.ready("qwen"))
    running.kill()
    old = pid_of(_engine(running))
    os.kill(old, signal.SIGKILL)
    running.start()
    running.until(lambda: running.ready("qwen") and pid_of(_engine(running)) != old)
    assert status_of(_engine(running), "engine")["restartCount"] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_only_an_interrupt_removes_services(running: Loop, tmp_path: Path, number: signal.Signals) -> None:
    running.start("-f", str(manifest(tmp_path)))
    running.until(lambda: running.ready("qwen"))
    before = _pids(running)
    assert running.interrupt(number) == 0
    assert all(map(_healthy, running.objects("Pod")))
    assert "2 pods go on without a control loop" in running.said()
    running.start()
    running.until(lambda: "Took over 2 running programs" in running.said())
    assert _pids(running) == before
    assert running.interrupt() == 0
    assert not any(map(alive, before.values()))


def test_an_interrupt_drains_and_leaves_nothing(running: Loop, tmp_path: Path) -> None:
    running.start("-f", str(manifest(tmp_path)))
    running.until(lambda: running.ready("qwen"))
    processes = running.processes()
    assert len(processes) == 2
    assert running.process is not None
    said = running.command("local", "up", code=1)
    assert f"another control loop (pid {running.process.pid}) runs on {running.layout.root}" in said
    assert running.interrupt() == 0
    assert not any(map(alive, processes))
    assert running.processes() == set()
    assert running.objects("*") == []
    assert list(running.layout.pods.iterdir()) == []
    assert "Everything has stopped." in running.said()


def test_a_second_interrupt_does_not_wait_for_programs_that_take_their_time(running: Loop, tmp_path: Path) -> None:
    running.environment["FAKE_ENGINE"] = "--deaf"
    running.start("-f", str(manifest(tmp_path, rollout={"drainTimeout": "10m"})))
    running.until(lambda: running.ready("qwen"))
    assert running.process is not None
    running.process.send_signal(signal.SIGINT)
    running.until(lambda: "Stopping: 2 pods finish their requests" in running.said())
    assert running.interrupt() == 0
    assert running.processes() == set()


def test_delete_ends_the_service_and_the_control_loop_goes_on(running: Loop, tmp_path: Path) -> None:
    running.start("-f", str(manifest(tmp_path)))
    running.until(lambda: running.ready("qwen"))
    processes = running.processes()
    assert running.command("delete", "qwen") == 'llmservice.serving.bladellm.io "qwen" deleted\n'
    assert not any(map(alive, processes))
    running.until(lambda: [obj["kind"] for obj in running.objects("*") if obj["kind"] != "Event"] == [])
    assert running.command("apply", "-f", str(tmp_path / "qwen.yaml")).endswith("/qwen created\n")
    running.until(lambda: running.ready("qwen"))
    assert running.service("qwen")["status"]["url"] == f"http://127.0.0.1:{running.port}/v1"


def test_a_changed_spec_rolls_out_and_the_router_keeps_its_port(running: Loop, tmp_path: Path) -> None:
    running.start("-f", str(manifest(tmp_path)))
    running.until(lambda: running.ready("qwen"))
    old = _engine(running)["metadata"]["name"]
    router = {name for name in _pids(running) if "router" in name}
    said = running.command("apply", "-f", str(manifest(tmp_path, engine={"maxNumSeqs": 3})))
    assert said.endswith("/qwen configured\n")
    running.until(lambda: running.ready("qwen") and len(running.objects("Pod")) == 2 and old not in _pids(running))
    assert router < set(_pids(running))
    assert running.command("apply", "-f", str(tmp_path / "qwen.yaml")).endswith("/qwen unchanged\n")


def test_a_failing_check_is_shown_and_with_ask_ends_the_control_loop(running: Loop, tmp_path: Path) -> None:
    running.environment["FAKE_CHECK_FAILS"] = "1"
    running.start("-f", str(manifest(tmp_path)), "--ask", "Are you there?")
    assert running.process is not None
    assert running.process.wait(60) == 1
    assert "qwen cannot become ready" in running.said()
    assert "check_memory_fit: FAILED: needs 9 GiB of 4 GiB" in running.said()
    assert running.processes() == set()


def test_an_engine_that_cannot_start_reports_why_and_the_control_loop_goes_on(running: Loop, tmp_path: Path) -> None:
    running.environment["FAKE_ENGINE"] = "--crash 3"
    running.start("-f", str(manifest(tmp_path)))
    running.until(lambda: "qwen cannot become ready" in running.said())
    assert "cannot go on: the disk is on fire" in running.said()
    assert running.process is not None
    assert running.process.poll() is None


FAILING_LOOP = """
import asyncio, os
if signal := os.environ.get("BLADE_TEST_FAILS_WITH"):
    from blade_operator.controller.controller import Controller
    run = Controller.run

    async def fail(self):
        task = asyncio.create_task(run(self))
        while not os.path.exists(signal):
            await asyncio.sleep(0.05)
        raise RuntimeError("a defect")

    Controller.run = fail
"""


def test_a_loop_that_fails_leaves_services_running(running: Loop, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FAILING_LOOP)
    signal_file = tmp_path / "fail"
    paths = f"{tmp_path / 'site'}{os.pathsep}{running.environment['PYTHONPATH']}"
    running.environment |= {"PYTHONPATH": paths, "BLADE_TEST_FAILS_WITH": str(signal_file)}
    running.start("-f", str(manifest(tmp_path)))
    running.until(lambda: running.ready("qwen"))
    signal_file.touch()
    assert running.process is not None
    assert running.process.wait(30) == 1
    assert "the control loop failed" in running.said()
    assert all(map(_healthy, running.objects("Pod")))
