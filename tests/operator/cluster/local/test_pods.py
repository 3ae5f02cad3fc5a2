"""Pods of the local runtime as real processes: order, probes, restarts, messages, files, the end."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from operator_support.local import Local, about, alive, local, pid_of, port_of, status_of, until
from operator_support.objects import config_map, container, deployment, init_container

from blade_operator.cluster.local.process import ProcessId
from blade_operator.model.objects import Object, Ref


def _only(runtime: Local) -> Object:
    (pod,) = runtime.pods()
    return pod


def _state(runtime: Local, name: str) -> Object:
    status: Object = status_of(_only(runtime), name) if runtime.pods() and "status" in _only(runtime) else {"state": {}}
    return status


async def test_a_deployment_becomes_ready_pods_that_kubectl_would_show(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment(replicas=2))
        first, second = await runtime.ready_pods(2)
        assert first["metadata"]["name"].startswith("qwen-engine-aaa-")
        assert first["metadata"]["ownerReferences"][0]["kind"] == "Deployment"
        status = first["status"]
        assert (status["phase"], status["podIP"]) == ("Running", "127.0.0.1")
        assert {c["type"]: c["status"] for c in status["conditions"]} == dict.fromkeys(
            ("PodScheduled", "Initialized", "ContainersReady", "Ready"), "True"
        )
        engine = status_of(first, "engine")
        assert engine["started"]
        assert engine["ready"]
        assert engine["restartCount"] == 0
        assert "startedAt" in engine["state"]["running"]
        assert port_of(first) != port_of(second)
        said = await about(first)
        assert said["argv"][1:7] == [
            *("--host", "127.0.0.1", "--port", str(port_of(first))),
            *("--internal_port", str(port_of(first, "internal"))),
        ]
        await until(lambda: runtime.get("Deployment", "qwen-engine-aaa")["status"]["readyReplicas"] == 2)
        shown = runtime.get("Deployment", "qwen-engine-aaa")["status"]
        assert (shown["replicas"], shown["updatedReplicas"], shown["availableReplicas"]) == (2, 2, 2)
        assert shown["observedGeneration"] == 1


async def test_a_failing_init_container_keeps_the_main_one_from_starting_and_leaves_its_message(tmp_path: Path) -> None:
    code = "import os, sys; open(os.environ['BLADE_TERMINATION_LOG'], 'w').write('{\"failed\": 1}'); sys.exit(1)"
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment(initContainers=[init_container("check", code)]))
        await until(lambda: _state(runtime, "check")["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff")
        check = _state(runtime, "check")
        assert (
            check["lastState"]["terminated"] | {"exitCode": 1, "message": '{"failed": 1}', "reason": "Error"}
            == (check["lastState"]["terminated"])
        )
        assert _state(runtime, "engine")["state"] == {"waiting": {"reason": "PodInitializing"}}
        assert not (runtime.runtime.layout.pod(_only(runtime)) / "logs" / "engine").exists()
        initialized = next(c for c in _only(runtime)["status"]["conditions"] if c["type"] == "Initialized")
        assert (initialized["status"], initialized["reason"]) == ("False", "ContainersNotInitialized")
        assert "[check]" in initialized["message"]


async def test_init_containers_run_one_after_the_other_before_the_main_one(tmp_path: Path) -> None:
    note = f"open({str(tmp_path / 'order')!r}, 'a').write"
    async with local(tmp_path) as runtime:
        init = [
            init_container("fetch", f"import time; time.sleep(0.3); {note}('fetch ')"),
            init_container("check", f"{note}('check')"),
        ]
        await runtime.apply(deployment(initContainers=init))
        (pod,) = await runtime.ready_pods(1)
        assert (tmp_path / "order").read_text() == "fetch check"
        assert status_of(pod, "check")["state"]["terminated"]["reason"] == "Completed"


async def test_a_killed_container_is_restarted_at_once_and_its_end_is_recorded(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment())
        (pod,) = await runtime.ready_pods(1)
        before = pid_of(pod)
        os.kill(before, signal.SIGKILL)
        await until(lambda: _state(runtime, "engine")["restartCount"] == 1 and runtime.ready())
        engine = _state(runtime, "engine")
        ended = engine["lastState"]["terminated"]
        assert (ended["exitCode"], ended["reason"], ended["signal"]) == (137, "Error", 9)
        assert pid_of(_only(runtime)) != before
        assert port_of(_only(runtime)) == port_of(pod)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_ranks_of_an_engine_end_with_it(tmp_path: Path, number: signal.Signals) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment("--ranks", "3"))
        (pod,) = await runtime.ready_pods(1)
        ranks = (await about(pod))["ranks"]
        assert len(ranks) == 2
        assert all(map(alive, ranks))
        os.kill(pid_of(pod), number)
        await until(lambda: not any(map(alive, ranks)))


async def test_a_container_that_keeps_failing_backs_off_longer_each_time(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment("--crash", "3"))
        await until(lambda: "back-off 2s" in _state(runtime, "engine")["state"].get("waiting", {}).get("message", ""))
        engine = _state(runtime, "engine")
        assert engine["restartCount"] == 2
        assert engine["lastState"]["terminated"]["exitCode"] == 3
        assert engine["lastState"]["terminated"]["message"].endswith("cannot go on: the disk is on fire\n")
        assert "Back-off restarting failed container engine" in runtime.events("BackOff")


async def test_readiness_follows_the_probe_and_so_do_the_endpoints(tmp_path: Path) -> None:
    from operator_support.objects import service

    async with local(tmp_path) as runtime:
        await runtime.apply(service(), deployment("--steer", str(tmp_path)))
        (pod,) = await runtime.ready_pods(1)
        await until(lambda: [endpoint["name"] for endpoint in runtime.endpoints()] == [pod["metadata"]["name"]])
        (tmp_path / "unready").touch()
        await until(lambda: runtime.endpoints() == [] and not runtime.ready())
        assert any("statuscode: 503" in message for message in runtime.events("Unhealthy"))
        (tmp_path / "unready").unlink()
        await until(lambda: len(runtime.endpoints()) == 1)
        assert _state(runtime, "engine")["restartCount"] == 0


async def test_a_container_that_is_not_live_is_restarted(tmp_path: Path) -> None:
    live = {"httpGet": {"path": "/live", "port": "http"}, "periodSeconds": 0.1, "failureThreshold": 2}
    async with local(tmp_path) as runtime:
        await runtime.apply(
            deployment(containers=[container("engine", "--steer", str(tmp_path), "--deaf", livenessProbe=live)]) | {}
        )
        runtime.store.update(
            Ref("Deployment", "default", "qwen-engine-aaa"),
            lambda obj: obj["spec"]["template"]["spec"].update(terminationGracePeriodSeconds=0.3),
        )
        await until(lambda: len(runtime.ready()) == 1 and len(runtime.pods()) == 1)
        before = pid_of(_only(runtime))
        (tmp_path / "stuck").touch()
        await until(lambda: _state(runtime, "engine")["restartCount"] == 1)
        (tmp_path / "stuck").unlink()
        await until(lambda: len(runtime.ready()) == 1)
        assert pid_of(_only(runtime)) != before
        assert "Container engine failed liveness probe, will be restarted" in runtime.events("Killing")


async def test_a_container_that_never_starts_up_is_restarted(tmp_path: Path) -> None:
    startup = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 0.1, "failureThreshold": 3}
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment(containers=[container("engine", "--start", "60", startupProbe=startup)]))
        await until(lambda: _state(runtime, "engine").get("restartCount") == 1)
        assert "Container engine failed startup probe, will be restarted" in runtime.events("Killing")


async def test_deletion_gives_the_grace_period_and_then_kills(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment("--deaf", terminationGracePeriodSeconds=1))
        (pod,) = await runtime.ready_pods(1)
        identity = ProcessId.of(pid_of(pod))
        await runtime.runtime.cluster.delete(Ref("Deployment", "default", "qwen-engine-aaa"))
        await until(lambda: runtime.pods() and "deletionTimestamp" in _only(runtime)["metadata"])
        assert ProcessId.of(pid_of(pod)) == identity
        await until(lambda: not runtime.pods())
        assert ProcessId.of(pid_of(pod)) != identity
        assert not runtime.runtime.layout.pod(pod).exists()


async def test_configuration_is_mounted_as_files_that_follow_their_object(tmp_path: Path) -> None:
    mounted = container(
        "engine", "--config", "/etc/blade/router.json", volumeMounts=[{"name": "config", "mountPath": "/etc/blade"}]
    )
    volumes = [{"name": "config", "configMap": {"name": "settings"}}]
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment(containers=[mounted], volumes=volumes))
        await until(lambda: runtime.events("FailedMount"))
        assert runtime.events("FailedMount") == ['configmap "settings" not found']
        await runtime.apply(config_map("settings", **{"router.json": "one"}))
        (pod,) = await runtime.ready_pods(1)
        assert (await about(pod))["config"] == "one"
        await runtime.apply(config_map("settings", **{"router.json": "two"}))
        for _ in range(300):
            if (await about(pod))["config"] == "two":
                break
            await asyncio.sleep(0.02)
        assert (await about(pod))["config"] == "two"


async def test_the_environment_has_references_secrets_and_the_threads_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLADE_STRAY", "1")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setattr("blade_operator.cluster.local.kubelet.cores", lambda: 8)
    engine = container("engine", env={"PLACE": "$(BLADE_HOST):$(BLADE_HTTP_PORT) $$(X) $(NOBODY)"})
    engine["env"] += [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "x", "optional": True}}},
    ]
    async with local(tmp_path) as runtime:
        declared: list[Object] = [
            {"replicas": 2},
            {"replicas": 1, "engine": {"gpus": {"count": 0, "tensorParallel": 2}}},
        ]
        for number, spec in enumerate(declared):
            metadata = {"name": f"service-{number}", "namespace": "default"}
            runtime.store.create({"kind": "LLMService", "metadata": metadata, "spec": spec})
        await runtime.apply(deployment(containers=[engine]))
        await until(
            lambda: _state(runtime, "engine")["state"].get("waiting", {}).get("reason") == "CreateContainerConfigError"
        )
        assert 'secret "hub" not found' in _state(runtime, "engine")["state"]["waiting"]["message"]
        secret = {"kind": "Secret", "metadata": {"name": "hub", "namespace": "default"}, "data": {"token": "c2VzYW1l"}}
        await runtime.apply(secret)
        (pod,) = await runtime.ready_pods(1)
        env = (await about(pod))["env"]
        assert env["PLACE"] == f"127.0.0.1:{port_of(pod)} $(X) $(NOBODY)"
        assert (env["POD"], env["TOKEN"], env["OMP_NUM_THREADS"]) == (pod["metadata"]["name"], "sesame", "2")
        assert env["HTTPS_PROXY"] == "http://proxy.example:3128"
        assert "NONE" not in env
        assert "BLADE_STRAY" not in env


async def test_a_program_that_is_not_installed_is_named(tmp_path: Path) -> None:
    engine = container("engine") | {"command": ["blade_llm_nonsense"]}
    async with local(tmp_path) as runtime:
        await runtime.apply(deployment(containers=[engine]))
        await until(lambda: "waiting" in _state(runtime, "engine")["state"] and runtime.events("Failed"))
        assert 'program "blade_llm_nonsense" is neither' in runtime.events("Failed")[0]


async def test_a_refresh_after_the_end_leaves_no_folder(tmp_path: Path) -> None:
    async with local(tmp_path) as runtime:
        volumes = [{"name": "scratch", "emptyDir": {}}]
        await runtime.apply(deployment(containers=[container("engine")], volumes=volumes))
        (pod,) = await runtime.ready_pods(1)
        kubelet = runtime.runtime._kubelet
        folder = runtime.runtime.layout.pod(pod)
        assert folder.exists()
        worker = kubelet._workers[pod["metadata"]["uid"]]
        await runtime.runtime.cluster.delete(Ref("Deployment", "default", "qwen-engine-aaa"))
        await until(lambda: not folder.exists())
        worker.refresh()  # the timer may come before the loop has let go of the worker
        assert not folder.exists()
