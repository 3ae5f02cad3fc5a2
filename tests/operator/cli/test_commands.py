"""The commands against a running local runtime, and what they print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from operator_support.local import pid_of
from operator_support.loop import Loop, loop, manifest

from blade_operator import main as program
from blade_operator.model.objects import Object


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    """One loop with one ready service for the whole module."""
    folder = tmp_path_factory.mktemp("cli")
    with loop(folder) as each:
        each.start("-f", str(manifest(folder)))
        each.until(lambda: each.ready("qwen"))
        yield each


@pytest.fixture(autouse=True)
def _same_state(running: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", running.environment["XDG_STATE_HOME"])


class Terminal:
    """Runs commands in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *args: str, code: int = 0) -> str:
        """Standard output; with a ``code`` other than 0, standard error."""
        self._capture.readouterr()
        assert program.main(args) == code
        captured = self._capture.readouterr()
        return captured.err if code else captured.out


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capfd)


def _engine(running: Loop) -> Object:
    return next(pod for pod in running.objects("Pod") if "engine" in pod["metadata"]["name"])


def test_get_prints_the_printer_columns(run: Terminal, running: Loop) -> None:
    header, row = run("get").splitlines()
    assert header.split() == ["NAME", "READY", "REASON", "MODEL", "DESIRED", "READY#", "GPUS", "URL", "AGE"]
    assert row.split()[:3] == ["qwen", "True", "Ready"]
    assert f"http://127.0.0.1:{running.port}/v1" in row
    assert run("get", "llm", "-o", "wide").splitlines()[0].split()[-1] == "REVISION"


def test_get_pods_deployments_and_everything(run: Terminal, running: Loop) -> None:
    lines = run("get", "pods").splitlines()
    assert lines[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert [line.split()[1:3] for line in lines[1:]] == [["1/1", "Running"]] * 2
    assert run("get", "deploy").splitlines()[0].split() == ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    everything = run("get", "all")
    for prefix in ("pod/", "service/", "deployment.apps/", "llmservice.serving.bladellm.io/qwen"):
        assert prefix in everything
    wide = run("get", "pods", "-o", "wide")
    assert str(pid_of(_engine(running))) in wide


def test_get_as_yaml_json_and_names(run: Terminal) -> None:
    one = yaml.safe_load(run("get", "llm", "qwen", "-o", "yaml"))
    assert one["kind"] == "LLMService"
    assert one["status"]["phase"] == "Ready"
    assert "managedFields" not in one["metadata"]
    assert one["spec"]["rollout"]["maxSurge"] == 1  # defaults are filled in, as an API server does
    several = json.loads(run("get", "pods", "-o", "json"))
    assert (several["kind"], len(several["items"])) == ("List", 2)
    assert run("get", "-o", "name") == "llmservice.serving.bladellm.io/qwen\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("get", "llm", "nobody"), 'llmservices.serving.bladellm.io "nobody" not found'),
        (("get", "zebras"), 'there is no resource type "zebras": use all or one of llm, lora, po, deploy'),
        (("describe", "nobody"), 'llmservices.serving.bladellm.io "nobody" not found'),
        (("scale", "nobody", "--replicas", "2"), 'llmservices.serving.bladellm.io "nobody" not found'),
        (("delete", "nobody"), 'llmservices.serving.bladellm.io "nobody" not found'),
        (("logs", "nobody"), 'there is no pod and no LLMService "nobody"'),
        (("logs", "qwen", "-c", "nothing"), "it has check, engine"),
        (("logs", "qwen", "-p"), 'previous terminated container "engine" in pod'),
        (("get", "--name", "Up/Down"), "use lower-case letters"),
        (("local", "up", "--ask", "x"), "--ask needs a service to ask"),
        (("local", "up", "--model", "no such folder"), "there is no such folder, and it is no hub id"),
        (("local", "up", "--name", "other", "--port", "PORT"), "stop it, or choose another port with --port"),
    ],
)
def test_mistakes_are_named(run: Terminal, running: Loop, args: tuple[str, ...], message: str) -> None:
    args = tuple(str(running.port) if word == "PORT" else word for word in args)
    assert message in run(*args, code=1)


def test_an_empty_list_prints_the_message_of_kubectl(running: Loop) -> None:
    assert "No resources found in team-a namespace." in running.command("get", "pods", "-n", "team-a")


def test_describe_prints_everything(run: Terminal, running: Loop) -> None:
    page = run("describe", "llm", "qwen")
    for words in (
        "Name:",
        "Conditions:",
        "Preflight:",
        "Failures:",
        "Pods:",
        "Events:",
        "check_memory_fit",
        "ScaledUp",
    ):
        assert words in page
    assert "Replicas:    1 desired | 1 updated | 1 ready | 0 draining" in page
    assert _engine(running)["metadata"]["name"] in page


def test_logs_of_a_service_a_pod_and_its_init_container(run: Terminal, running: Loop) -> None:
    assert run("logs", "qwen").splitlines()[-1] == "listening"
    assert run("logs", _engine(running)["metadata"]["name"], "--tail", "1") == "listening\n"
    assert run("logs", "qwen", "-c", "check") == "check PASS\n"
    assert "started pid" in run("logs", "qwen", "-c", "router")


def test_logs_follow_through_a_restart(run: Terminal, running: Loop) -> None:
    argv = running._argv("logs", "qwen", "-f")
    with subprocess.Popen(argv, env=running.environment, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        try:
            assert follower.stdout.readline().startswith("started pid")
            before = pid_of(_engine(running))
            os.kill(before, signal.SIGKILL)
            lines = [follower.stdout.readline() for _ in range(2)]
            running.until(lambda: running.ready("qwen") and pid_of(_engine(running)) != before)
            assert lines[0] == "listening\n"
            assert lines[1].startswith(f"started pid {pid_of(_engine(running))}")
        finally:
            follower.kill()
    assert run("logs", "qwen", "-p").splitlines()[0].startswith(f"started pid {before}")


def test_a_change_that_an_api_server_would_refuse_is_refused(run: Terminal, running: Loop, tmp_path: Path) -> None:
    def cached(size: str) -> str:
        model = {"uri": "hf://a/b", "cache": {"size": size}}
        path = manifest(tmp_path, "cached", replicas=0)
        service = json.loads(path.read_text())
        service["spec"]["model"] = model
        path.write_text(json.dumps(service))
        return str(path)

    run("apply", "-f", cached("2Gi"))
    refused = run("apply", "-f", cached("1Gi"), code=1)
    assert 'the LLMService "cached" is invalid:\n  spec.model.cache.size: a claim can grow and never shrink' in refused
    run("delete", "cached")


def test_get_watch_prints_what_changes(run: Terminal, running: Loop) -> None:
    argv = running._argv("get", "llm", "-w")
    with subprocess.Popen(argv, env=running.environment, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        try:
            assert watcher.stdout.readline().startswith("NAME")
            assert watcher.stdout.readline().split()[4] == "1"
            run("scale", "qwen", "--replicas", "0")
            # another column may change before: an engine was not seen again yet, say
            assert any(watcher.stdout.readline().split()[4] == "0" for _ in range(3))
        finally:
            watcher.kill()
            run("scale", "qwen", "--replicas", "1")
            running.until(lambda: running.ready("qwen"))


@pytest.mark.parametrize(
    ("spec", "messages"),
    [
        ({"modell": {}}, ["spec.modell", "did you mean", "spec.model"]),
        ({"model": {"uri": "file:///x"}, "replicas": "two"}, ["spec.replicas"]),
        ({"model": {"uri": "file:///x"}, "engine": {"dtyp": "auto"}}, ["spec.engine.dtyp", "dtype"]),
    ],
)
def test_an_invalid_service_is_refused_by_field_and_nothing_else_is_disturbed(
    run: Terminal, running: Loop, tmp_path: Path, spec: Object, messages: list[str]
) -> None:
    good = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "good"}, "data": {"a": str(time.time())}}
    bad = {
        "apiVersion": "serving.bladellm.io/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": "bad"},
        "spec": spec,
    }
    path = tmp_path / "both.yaml"
    path.write_text(yaml.safe_dump_all([bad, good]))
    said = run("apply", "-f", str(path), code=1)
    assert 'the LLMService "bad" is invalid' in said
    for message in messages:
        assert message in said
    assert running.service("bad") == {}
    assert [obj["data"] for obj in running.objects("ConfigMap") if obj["metadata"]["name"] == "good"] == [good["data"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: [", "is not YAML"),
        ("- 1", "every document must be an object"),
        ("", "no objects in it"),
        ("{kind: Deployment, metadata: {name: x}}", "Deployment objects cannot be applied here, only LLMService"),
        ("{kind: ConfigMap, kind: ConfigMap, metadata: {name: x}}", "'kind' comes twice"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: x, labels: 3}}", "metadata.labels: must be an object"),
        ("{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {a: 1}}", "data.a: must be a string"),
        ("{apiVersion: v1, kind: Secret, metadata: {name: x}, data: {a: '*'}}", "data.a: must be base64"),
        ("{kind: List, items: [{kind: Pod, metadata: {name: x}}]}", "Pod objects cannot be applied here"),
        (
            "{apiVersion: serving.bladellm.io/v1alpha1, kind: LLMService, metadata: {name: x, annotations: {a: 1}}}",
            "metadata.annotations.a: must be a string",
        ),
    ],
)
def test_a_file_that_is_no_manifest_is_named(run: Terminal, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    assert message in run("apply", "-f", str(path), code=1)
    assert "No such file" in run("apply", "-f", str(tmp_path / "absent"), code=1)


def test_a_long_state_path_is_no_obstacle_for_the_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with loop(deep) as far:
        far.start()
        assert "configmap/a created" in far.command("apply", "-f", str(_config_map(tmp_path)))
        assert far.interrupt() == 0


def _config_map(folder: Path) -> Path:
    path = folder / "a.yaml"
    path.write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")
    return path


def test_rollout_pauses_goes_on_and_goes_back(run: Terminal, running: Loop) -> None:
    def first_of(service: Object) -> Object:
        found: Object = service["status"]["revision"]
        return found

    name = "llmservice.serving.bladellm.io/qwen"
    before = first_of(running.service("qwen"))["current"]
    assert run("rollout", "status", "llm/qwen") == 'llmservice "qwen" successfully rolled out\n'
    assert run("rollout", "pause", "qwen") == f"{name} paused\n"
    assert "qwen is already paused" in run("rollout", "pause", "qwen", code=1)
    assert run("rollout", "restart", "qwen") == f"{name} restarted\n"
    running.until(lambda: first_of(running.service("qwen"))["current"] != before)
    running.until(lambda: "(Paused)" in run("rollout", "status", "qwen", "--no-watch"))
    assert [pod["metadata"]["labels"]["serving.bladellm.io/revision"] for pod in [_engine(running)]] == [before]
    assert "resume it first" in run("rollout", "undo", "qwen", code=1)
    assert run("rollout", "resume", "qwen") == f"{name} resumed\n"
    assert run("rollout", "status", "qwen").splitlines()[-1] == 'llmservice "qwen" successfully rolled out'
    header, *rows = run("rollout", "history", "qwen").splitlines()[1:]
    assert header.split() == ["REVISION", "NAME", "STATE", "CHANGE-CAUSE"]
    assert [row.split()[0] for row in rows[-2:]] == ["1", "2"]
    assert "nothing to retry" in run("rollout", "retry", "qwen", code=1)
    assert "there is no revision 99" in run("rollout", "undo", "qwen", "--to-revision", "99", code=1)
    assert run("rollout", "undo", "llm", "qwen") == f"{name} went back to revision 1 ({before})\n"
    run("rollout", "status", "qwen", "--timeout", "60")
    running.until(lambda: running.ready("qwen"))
    assert first_of(running.service("qwen"))["current"] == before
    assert "not found" in run("rollout", "history", "nobody", code=1)
