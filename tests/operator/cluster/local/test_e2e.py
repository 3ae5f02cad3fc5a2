"""The whole product on this machine with the real programs: apply, serve, lose an engine, change, delete."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hub_support.fake_hub import running_hub
from hub_support.fake_origins import running_origins
from operator_support.local import free_port, pid_of
from operator_support.loop import Loop, loop, manifest

from blade_operator.model.objects import Object

MODEL = Path(__file__).parents[4] / "examples" / "demo_model" / "model"


def _engines(loop: Loop) -> list[Object]:
    pods = [pod for pod in loop.objects("Pod") if "engine" in pod["metadata"]["name"]]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def _status(loop: Loop) -> Object:
    found = [service.get("status", {}) for service in loop.objects("LLMService")]
    return found[0] if found else {}


def _stream(url: str, question: str, tokens: int) -> str:
    """Outcome of one stream: ``ok``, ``refused`` (an error before its first byte) or ``broken`` (one after it)."""
    body = {"messages": [{"role": "user", "content": question}], "stream": True, "max_tokens": tokens}
    begun = done = False
    try:
        with httpx.stream("POST", f"{url}/chat/completions", json=body, timeout=60, trust_env=False) as response:
            if response.status_code != 200:
                return "refused"
            for line in response.iter_lines():
                begun = begun or bool(line)
                done = done or line == "data: [DONE]"
                if line.startswith("data: {") and "error" in json.loads(line.removeprefix("data: ")):
                    return "broken"
    except httpx.HTTPError:
        return "broken" if begun else "refused"
    return "ok" if done else "broken"


class Load:
    """Streams from several threads without a pause, until ``stop``."""

    def __init__(self, url: str, users: int = 3) -> None:
        self.results: Counter[str] = Counter()
        self._stop = threading.Event()
        self._url = url
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(users)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        while not self._stop.is_set():
            self.results[_stream(self._url, f"What does len do? {number}", 24)] += 1

    def stop(self) -> Counter[str]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.results


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Loop]:
    with loop(tmp_path, real=True) as each:
        yield each


@pytest.mark.timeout(600)
def test_a_service_from_apply_to_delete(running: Loop, tmp_path: Path) -> None:
    running.environment["OMP_NUM_THREADS"] = "1"
    running.start("-f", str(manifest(tmp_path, model=MODEL, replicas=2)), "--ask", "What does len do?")
    running.until(lambda: "tokens, the first after" in running.said(), 120)
    url = running.service("qwen")["status"]["url"]
    assert url == f"http://127.0.0.1:{running.port}/v1"
    checked = running.service("qwen")["status"]["preflight"]
    assert {entry["failed"] for entry in checked} == {0}

    # An engine dies under load: no client whose response had not begun notices, and it comes back by itself.
    load = Load(url)
    running.until(lambda: load.results["ok"] > 5, 60)
    killed = _engines(running)[0]
    os.kill(pid_of(killed), signal.SIGKILL)
    running.until(lambda: running.service("qwen")["status"]["readyReplicas"] == 1, 60)
    running.until(lambda: running.ready("qwen", 2), 120)
    results = load.stop()
    assert results["refused"] == 0
    assert results["ok"] > 5
    (failure,) = running.service("qwen")["status"]["failures"]
    assert (failure["pod"], failure["container"]) == (killed["metadata"]["name"], "engine")
    assert (failure["exitCode"], failure["restarts"]) == (137, 1)
    assert "SIGKILL" in failure["message"]

    # A change replaces both engines, one after the other, and no request fails.
    before = {pod["metadata"]["name"] for pod in _engines(running)}
    load = Load(url)
    engine = {"maxNumSeqs": 8, "quant": "int8", "deterministic": True}
    changed = manifest(tmp_path, model=MODEL, replicas=2, engine=engine, check={"items": ["shm"]})
    assert running.command("apply", "-f", str(changed)).endswith("/qwen configured\n")
    running.until(lambda: not before & {pod["metadata"]["name"] for pod in running.objects("Pod")}, 180)
    running.until(lambda: running.ready("qwen", 2), 60)
    results = load.stop()
    assert set(results) == {"ok"}

    # The control loop is killed: the service goes on serving, and the next loop adopts it.
    running.kill()
    assert _stream(url, "What does sorted do?", 8) == "ok"
    pids = {pid_of(pod) for pod in _engines(running)}
    running.start()
    running.until(lambda: "Took over 3 running programs" in running.said())
    assert {pid_of(pod) for pod in _engines(running)} == pids
    running.command("delete", "qwen")
    running.until(lambda: not running.processes())
    assert running.interrupt() == 0


@pytest.mark.timeout(600)
def test_a_hub_id_is_downloaded_once_and_kept_and_an_absent_hub_is_explained(running: Loop) -> None:
    running.environment.pop("HF_HUB_OFFLINE", None)
    running.environment["HF_ENDPOINT"] = f"http://127.0.0.1:{free_port()}"
    running.start("--model", "acme/demo", "--ask", "What does len do?")
    assert running.process is not None
    assert running.process.wait(120) == 1
    assert "demo cannot become ready" in running.said()
    assert f"cannot reach the model hub {running.environment['HF_ENDPOINT']}" in running.said()

    with running_hub() as hub:
        hub.add("acme/demo", MODEL)
        running.environment["HF_ENDPOINT"] = hub.endpoint
        size = len((MODEL / "model.safetensors").read_bytes())
        hub.fault("/storage/", pause_after=size // 2)
        running.start("--model", "acme/demo", "--ask", "What does len do?")
        # Half of it has arrived: the status says so while the rest is awaited.
        running.until(lambda: _status(running).get("model", {}).get("downloaded", 0) >= size // 2, 120)
        [cached] = [entry for entry in _status(running)["conditions"] if entry["type"] == "ModelCached"]
        assert cached["reason"] == "Downloading"
        assert re.match(r"downloading: [56]\d % of [\d.]+ MiB", cached["message"])
        hub.go.set()
        running.until(lambda: "tokens, the first after" in running.said(), 120)
        assert running.interrupt() == 0
        downloads = len(hub.asked("model.safetensors"))
        assert downloads > 0
        running.start("--model", "acme/demo")
        running.until(lambda: running.condition("demo", "ModelCached") == "True", 120)
        assert len(hub.asked("model.safetensors")) == downloads
        assert running.interrupt() == 0


@pytest.mark.timeout(600)
def test_models_of_a_bucket_and_a_registry_are_downloaded_with_their_secrets(running: Loop, tmp_path: Path) -> None:
    pytest.importorskip("minio")
    for name in ("HF_HUB_OFFLINE", "AWS_ACCESS_KEY_ID", "OCI_USERNAME", "DOCKER_AUTH_CONFIG"):
        running.environment.pop(name, None)
    running.environment |= {"OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "home")}
    with running_origins() as origins:
        for repository in ("models/demo", "acme/demo"):
            origins.add(repository, MODEL)
        origins.tokens |= {"models": "bucket-key", "acme/demo": "any"}
        host = origins.endpoint.removeprefix("http://")
        login = json.dumps({"auths": {host: {"username": "me", "password": "secret"}}})
        secrets = {
            "bucket": {"AWS_ACCESS_KEY_ID": "bucket-key", "AWS_SECRET_ACCESS_KEY": "any"},
            "registry": {".dockerconfigjson": login},
        }
        env = [{"name": "AWS_ENDPOINT_URL_S3", "value": origins.endpoint}]
        uris = {"bucket": "s3://models/demo", "registry": f"oci://{host}/acme/demo:v1"}
        words = []
        for name, values in secrets.items():
            secret = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": f"{name}-secret"},
                "stringData": values,
            }
            path = manifest(tmp_path, name, engine={"env": env}, model=MODEL)
            service = json.loads(path.read_text())
            service["spec"]["model"] = {"uri": uris[name], "credentialsSecretRef": {"name": f"{name}-secret"}}
            path.write_text(f"{json.dumps(secret)}\n---\n{json.dumps(service)}\n")
            words += ["-f", str(path)]
        running.start(*words)
        for name, uri in uris.items():
            running.until(lambda name=name: running.ready(name), 120)  # type: ignore[misc]
            status = running.service(name)["status"]
            [cached] = [entry for entry in status["conditions"] if entry["type"] == "ModelCached"]
            assert cached["message"].startswith(f"{uri} is in the cache")
            assert _stream(status["url"], "What does len do?", 8) == "ok"
