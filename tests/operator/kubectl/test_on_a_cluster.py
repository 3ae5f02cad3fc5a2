"""The commands of ``kubectl llm`` on an API server: what they ask for, print and exit with."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from operator_support.fake_cluster import FakeCluster, fake_cluster, llm, pod

from blade_operator import main as operator_program
from blade_operator.kubectl import main as program
from blade_operator.kubectl.jobs import JOB_NAME
from blade_operator.model.objects import Object
from blade_protocol.labels import CHANGE_CAUSE

CRASHED = {
    "ready": False,
    "restartCount": 3,
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
}
FAILURE = {
    "pod": "qwen-engine-b",
    "container": "engine",
    "reason": "Error",
    "exitCode": 1,
    "restarts": 3,
    "message": "the engine ended with exit code 1 (spec.engine.maxNumSeqs)",
    "lastLog": "RuntimeError: no room",
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    with fake_cluster(tmp_path) as made:
        monkeypatch.setenv("KUBECONFIG", "/nowhere")
        monkeypatch.setenv("COLUMNS", "140")
        monkeypatch.chdir(tmp_path)
        yield made


class Terminal:
    """Runs commands in this process."""

    def __init__(self, cluster: FakeCluster, capture: pytest.CaptureFixture[str]) -> None:
        self._cluster, self._capture = cluster, capture
        self.errors = ""

    def __call__(self, *args: str, code: int = 0) -> str:
        """Standard output; standard error is in ``errors``."""
        self._capture.readouterr()
        place = len(args) if "--" not in args else args.index("--")
        argv = [*args[:place], "--kubeconfig", str(self._cluster.kubeconfig), *args[place:]]
        found = program.main(argv)
        captured = self._capture.readouterr()
        self.errors = captured.err
        assert found == code, captured.out + captured.err
        return captured.out


@pytest.fixture
def run(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(cluster, capfd)


class Web:
    """A service of its own behind a pod's port: answers by path."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, str]] = {}
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _respond(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                web.bodies.append(json.loads(self.rfile.read(length) or b"null"))
                web.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, text = web.pages.get(self.path, (404, "{}"))
                data = text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = _respond

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()
    yield made
    made.server.shutdown()
    made.server.server_close()


def _chunks(*texts: str, done: bool = True) -> str:
    lines = [json.dumps({"choices": [{"delta": {"content": text}}]}) for text in texts]
    return "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if done else [])])


def test_status_shows_the_failing_container_and_its_last_line(cluster: FakeCluster, run: Terminal) -> None:
    ready = {"type": "Ready", "status": "False", "reason": "EnginesFailing", "message": "0 of 1 engines ready"}
    cluster.put(
        llm(phase="Degraded", conditions=[ready, {"type": "SpecValid", "status": "True"}], failures=[FAILURE]),
        pod("qwen-router-a", "router"),
        pod("qwen-engine-b", "engine", CRASHED),
        pod("other-engine", "engine", service="other"),
    )
    cluster.logs["qwen-engine-b", "engine", False] = b"loading\nRuntimeError: no \x1b[2Jroom\n\n"
    out = run("status", "llm/qwen")
    assert "llm/qwen  Degraded" in out
    assert "✗ Ready is False (EnginesFailing): 0 of 1 engines ready" in out
    assert "engine: CrashLoopBackOff (last: Error, exit code 1), 3 restarts" in out
    assert "> RuntimeError: no \\e[2Jroom" in out
    assert "spec.engine.maxNumSeqs" in out
    assert "other-engine" not in out
    data = json.loads(run("status", "qwen", "-o", "json"))
    assert (data["name"], data["pods"][1]["containers"][0]["lastLine"]) == ("qwen", "RuntimeError: no \x1b[2Jroom")
    listed = yaml.safe_load(run("status", "-o", "yaml"))
    assert [each["name"] for each in listed["services"]] == ["qwen"]


def test_namespaces_and_contexts_are_those_of_kubectl(cluster: FakeCluster, run: Terminal) -> None:
    cluster.put(llm("one"), llm("two", "other"))
    assert "llm/one" in run("status")
    assert "llm/two" in run("status", "-n", "other")
    assert "llm/two" in run("status", "--context", "b")
    assert "llm/two" in run("-n", "other", "status")
    assert "llm/one" in run("--context=b", "--namespace", "team", "status")
    both = run("status", "-A")
    assert "llm/one" in both
    assert "llm/two" in both
    run("status", "-n", "empty")
    assert run.errors == "No LLMServices found in empty namespace.\n"
    run("status", "--context", "nowhere", code=1)
    assert "nowhere" in run.errors


def test_mistakes_are_named_and_exit_with_1(cluster: FakeCluster, run: Terminal) -> None:
    run("status", "nobody", code=1)
    assert run.errors == 'error: "nobody" not found\n'
    run("staus", code=1)
    assert "did you mean 'status'?" in run.errors
    cluster.refused["/llmservices"] = (403, 'llmservices is forbidden: User "x"\x1b[2J cannot list')
    run("status", code=1)
    assert run.errors == 'error: llmservices is forbidden: User "x"\\e[2J cannot list\n'
    cluster.kubeconfig = cluster.kubeconfig.with_name("none")
    run("status", code=1)
    assert "there is no such file" in run.errors


def test_logs_print_what_fails_first_with_why(cluster: FakeCluster, run: Terminal) -> None:
    cluster.put(llm(failures=[FAILURE]), pod("qwen-engine-b", "engine", CRASHED), pod("qwen-router-a", "router"))
    cluster.logs["qwen-engine-b", "engine", False] = b"".join(b"line %d\n" % number for number in range(300))
    cluster.logs["qwen-engine-b", "engine", True] = b"before\n"
    lines = run("logs", "qwen").splitlines()
    assert (len(lines), lines[-1]) == (100, "line 299")
    assert run.errors == (
        "==> qwen-engine-b engine: Error: the engine ended with exit code 1 (spec.engine.maxNumSeqs)\n"
    )
    assert run("logs", "qwen", "--tail", "2") == "line 298\nline 299\n"
    assert run("logs", "qwen", "-p") == "before\n"
    assert len(run("logs", "pod/qwen-engine-b").splitlines()) == 300
    run("logs", "qwen", "-c", "zebra", code=1)
    assert 'has a container "zebra"' in run.errors
    run("logs", "nobody", code=1)
    assert 'no LLMService and no pod "nobody"' in run.errors


def test_logs_of_a_service_that_runs_are_those_of_all_its_pods(cluster: FakeCluster, run: Terminal) -> None:
    cluster.put(llm(), pod("qwen-engine-b", "engine"), pod("qwen-router-a", "router"))
    cluster.logs["qwen-engine-b", "engine", False] = b"one\ntwo \x1b[31m\n"
    cluster.logs["qwen-router-a", "router", False] = b"three\n"
    assert run("logs", "qwen") == "one\ntwo \\e[31m\nthree\n"
    assert run.errors == "==> qwen-engine-b engine\n==> qwen-router-a router\n"
    followed = run("logs", "qwen", "-f").splitlines()
    assert sorted(followed) == ["[qwen-engine-b] one", "[qwen-engine-b] two \\e[31m", "[qwen-router-a] three"]


def test_command_quotes_words_and_hides_secrets(cluster: FakeCluster, run: Terminal) -> None:
    fields = {
        "args": ["--name", "a b", "--port=$(PORT)", "--api_key", "hush-hush"],
        "env": [
            {"name": "PORT", "value": "80"},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
            {"name": "MY_PASSWORD", "value": "hush-hush"},
        ],
    }
    cluster.put(llm(), *(pod(f"qwen-engine-{each}", "engine", **fields) for each in "ab"), pod("r", "router"))
    out = run("command", "--role", "engine")
    assert out == (
        "# pod qwen-engine-a and 1 more, container engine\n"
        "PORT=80 HF_TOKEN='<secret hub/token>' MY_PASSWORD='<redacted>' blade_engine --name 'a b' --port=80 "
        "--api_key '<redacted>'\n"
    )
    everything = json.loads(run("command", "-o", "json"))["commands"]
    assert [each["pods"] for each in everything] == [["qwen-engine-a", "qwen-engine-b"], ["r"]]
    assert run("command", "--pod", "r").endswith("blade_router\n")


def test_chat_streams_through_a_port_forward(
    cluster: FakeCluster, run: Terminal, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = llm()
    service["spec"]["router"] = {"auth": {"keysSecret": {"name": "keys"}}}
    cluster.put(service, pod("qwen-router-a", "router"))
    cluster.ports["qwen-router-a", 80] = web.port
    web.pages = {
        "/v1/models": (200, '{"data": [{"id": "qwen"}]}'),
        "/v1/chat/completions": (200, _chunks("It ", "counts\x1b[2J.")),
    }
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert run("chat", "qwen", "What?", "--system", "Be brief", "--max_tokens", "5") == "It counts\\e[2J.\n"
    body = web.bodies[-1]
    assert [each["role"] for each in body["messages"]] == ["system", "user"]
    assert (body["model"], body["max_tokens"], body["stream"]) == ("qwen", 5, True)
    assert web.headers[-1]["authorization"] == "Bearer k"
    monkeypatch.setattr("sys.stdin", io.StringIO("From a pipe\n"))
    assert run("chat", "--adapter", "poet") == "It counts\\e[2J.\n"
    assert (web.bodies[-1]["model"], web.bodies[-1]["messages"][-1]["content"]) == ("poet", "From a pipe")


def test_a_conversation_has_lines_that_can_be_edited(
    cluster: FakeCluster, run: Terminal, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put(llm(), pod("qwen-router-a", "router"))
    cluster.ports["qwen-router-a", 80] = web.port
    web.pages["/v1/chat/completions"] = (200, _chunks("It counts."))
    prompts = iter(["What?", "/exit"])

    def read(prompt: str) -> str:
        assert "readline" in sys.modules
        return next(prompts)

    monkeypatch.delitem(sys.modules, "readline", raising=False)
    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    assert run("chat", "--model", "m") == "It counts.\n"


def test_chat_says_why_it_gets_no_answer(cluster: FakeCluster, run: Terminal, web: Web) -> None:
    cluster.put(llm(), pod("qwen-router-a", "router"))
    run("chat", "qwen", "What?", code=1)
    assert "failed to connect to localhost:80 inside the pod" in run.errors
    cluster.refused["/portforward"] = (403, "forbidden")
    run("chat", "qwen", "What?", code=1)
    assert "it takes the right to get and create pods/portforward" in run.errors
    cluster.refused.clear()
    cluster.ports["qwen-router-a", 80] = web.port
    web.pages["/v1/chat/completions"] = (401, '{"error": {"message": "no key"}}')
    run("chat", "qwen", "What?", "--model", "m", code=1)
    assert "answered 401: no key; set OPENAI_API_KEY" in run.errors
    web.pages["/v1/chat/completions"] = (200, _chunks("It", done=False))
    assert run("chat", "qwen", "What?", "--model", "m", code=1) == "It\n"
    assert "broke off" in run.errors
    cluster.put(pod("qwen-router-a", "router", {"ready": False}))
    run("chat", "qwen", "What?", code=1)
    assert "no router of llm/qwen is ready" in run.errors


def _ended(cluster: FakeCluster, code: int, log: bytes) -> None:
    """Jobs end at once, with this exit code and log."""

    def end(job: Object) -> None:
        name = job["metadata"]["name"]
        made = pod(f"{name}-x", "tool", {"state": {"terminated": {"exitCode": code}}}, service="")
        made["metadata"]["labels"] = {JOB_NAME: name}
        cluster.put(made)
        cluster.logs[f"{name}-x", "tool", False] = log

    cluster.on_create = end


def _put_operator(cluster: FakeCluster, *flags: str, namespace: str = "bladellm-system") -> None:
    operator = pod("operator", "operator", args=["run", *flags])
    operator["metadata"] |= {
        "namespace": namespace,
        "labels": {"app.kubernetes.io/name": "bladellm-operator"},
    }
    cluster.put(operator)


def test_check_runs_a_job_on_a_node_and_deletes_it(cluster: FakeCluster, run: Terminal) -> None:
    _ended(cluster, 1, b"       check_shm     FAILED  -  1 MiB\n\nPASS 0, WARNING 0, FAILED 1\n")
    _put_operator(cluster, "--engine_image=registry/engine:7")
    jobs = list[Object]()
    end = cluster.on_create
    cluster.on_create = lambda job: (jobs.append(job), end(job))[0]
    out = run("check", "--node", "gpu-7", "--gpus", "2", "--", "--items", "shm", code=1)
    assert out.endswith("PASS 0, WARNING 0, FAILED 1\n")
    [job] = jobs
    template = job["spec"]["template"]["spec"]
    assert template["nodeSelector"] == {"kubernetes.io/hostname": "gpu-7"}
    [container] = template["containers"]
    assert container["command"] == ["blade_llm_check", "--items", "shm"]
    assert container["image"] == "registry/engine:7"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert job["spec"]["activeDeadlineSeconds"] == 300
    assert any(each.startswith("DELETE /apis/batch/v1/namespaces/team/jobs/llm-check-") for each in cluster.requests)
    assert template["tolerations"] == [{"operator": "Exists"}]
    printed = yaml.safe_load(run("check", "--image", "x", "-o", "yaml"))
    assert (printed["kind"], printed["spec"]["template"]["spec"]["containers"][0]["image"]) == ("Job", "x")


def test_check_of_a_service_is_where_its_engines_are(cluster: FakeCluster, run: Terminal) -> None:
    service, taint = llm(), {"key": "gpu", "operator": "Exists"}
    overlay = {"tolerations": [taint], "nodeSelector": {"pool": "h100"}, "priorityClassName": "x"}
    service["spec"]["engine"] = {
        "image": "own:1",
        "shmSize": "2Gi",
        "gpus": {"count": 16, "nodes": 2, "resource": "amd.com/gpu"},
        "podTemplate": {"spec": overlay},
    }
    cluster.put(service)
    template = yaml.safe_load(run("check", "qwen", "-o", "yaml"))["spec"]["template"]["spec"]
    assert (template["tolerations"], template["nodeSelector"]) == ([taint], {"pool": "h100"})
    assert "priorityClassName" not in template
    assert {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}} in template["volumes"]
    assert template["containers"][0]["image"] == "own:1"
    assert template["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "8"}
    template = yaml.safe_load(run("check", "qwen", "--node", "n", "-o", "yaml"))["spec"]["template"]["spec"]
    assert template["nodeSelector"] == {"pool": "h100", "kubernetes.io/hostname": "n"}


def test_a_job_that_cannot_start_is_explained_and_deleted(cluster: FakeCluster, run: Terminal) -> None:
    def stuck(job: Object) -> None:
        made = pod("p", "tool", service="")
        made["metadata"]["labels"] = {JOB_NAME: job["metadata"]["name"]}
        unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: Insufficient nvidia.com/gpu"}
        made["status"] = {"phase": "Pending", "conditions": [unscheduled]}
        cluster.put(made)

    cluster.on_create = stuck
    run("check", "--timeout", "1", code=1)
    assert "did not end within 1 s: not scheduled: 0/3 nodes: Insufficient nvidia.com/gpu" in run.errors
    assert not [path for path in cluster.objects if "/jobs/" in path]


def test_a_job_names_no_ids_where_the_operators_pods_name_none(cluster: FakeCluster, run: Terminal) -> None:
    assert "runAsUser" in yaml.safe_load(run("check", "-o", "yaml"))["spec"]["template"]["spec"]["securityContext"]
    _put_operator(cluster, "--engine_image", "registry/engine:7", "--openshift", namespace="llm")
    template = yaml.safe_load(run("check", "--operator_namespace", "llm", "-o", "yaml"))["spec"]["template"]["spec"]
    assert "runAsUser" not in template["securityContext"]
    assert template["containers"][0]["image"] == "registry/engine:7"


def test_a_job_that_may_not_be_made_says_so(cluster: FakeCluster, run: Terminal) -> None:
    cluster.refused["/jobs"] = (403, "you may not create jobs")
    run("check", code=1)
    assert "you may not create jobs" in run.errors


def test_bench_as_a_job_has_sane_defaults(cluster: FakeCluster, run: Terminal) -> None:
    _ended(cluster, 0, b"Result\n")
    service = llm(url="http://qwen-router.team:8080/v1")
    service["spec"]["engine"] = {"podTemplate": {"spec": {"imagePullSecrets": [{"name": "hub"}], "hostNetwork": True}}}
    cluster.put(service)
    jobs = list[Object]()
    end = cluster.on_create
    cluster.on_create = lambda job: (jobs.append(job), end(job))[0]
    assert run("bench", "qwen", "--in_cluster", "--", "--request_rate", "2") == "Result\n"
    template = jobs[0]["spec"]["template"]["spec"]
    assert (template["imagePullSecrets"], "hostNetwork" in template) == ([{"name": "hub"}], False)
    words = template["containers"][0]["command"]
    assert words[:3] == ["blade_llm_benchmark", "--base_url", "http://qwen-router.team:8080/v1"]
    assert "--concurrency" not in words
    assert words[words.index("--output_len") + 1] == "64"
    assert words[-2:] == ["--request_rate", "2"]


def test_adapters_are_listed_with_where_they_are(cluster: FakeCluster, run: Terminal, web: Web) -> None:
    placed = {"name": "poet", "desired": 2, "loaded": 1, "pods": ["qwen-engine-b"], "bytes": 2**20, "reason": "no room"}
    adapter: Object = {
        "kind": "LoRAAdapter",
        "metadata": {"name": "lonely", "namespace": "team"},
        "spec": {"uri": "hf://a/b"},
    }
    cluster.put(llm(adapters=[placed]), pod("qwen-router-a", "router"), adapter)
    cluster.ports["qwen-router-a", 81] = web.port
    web.pages["/metrics"] = (200, 'blade_router_model_requests_total{code="200",key="",model="poet"} 7\n')
    header, first, second = run("adapters").splitlines()
    assert header.split() == ["NAME", "SERVICE", "ENGINES", "STATE", "SIZE", "REQUESTS", "PODS"]
    assert first.split() == ["poet", "qwen", "1/2", "no", "room", "1.0", "MiB", "7", "qwen-engine-b"]
    assert second.split()[:3] == ["lonely", "-", "0/0"]
    assert [each["requests"] for each in json.loads(run("adapters", "-o", "json"))["adapters"]] == [7, None]


def test_rollout_works_in_the_context(cluster: FakeCluster, run: Terminal) -> None:
    cluster.put(llm(), llm("poet", "other"))
    assert run("rollout", "history", "qwen") == "llmservice.serving.bladellm.io/qwen\n"
    assert run.errors == "there is no revision yet\n"
    assert run("rollout", "pause", "llm/poet", "--context", "b") == "llmservice.serving.bladellm.io/poet paused\n"
    changed = [obj for obj in cluster.objects.values() if obj["spec"].get("rollout")]
    assert [each["metadata"]["name"] for each in changed] == ["poet"]


def test_a_history_obeys_nobodys_terminal_codes(cluster: FakeCluster, run: Terminal) -> None:
    revision: Object = {
        "kind": "ControllerRevision",
        "metadata": {
            "name": "qwen-engine-3bb83307",
            "namespace": "team",
            "labels": {"serving.bladellm.io/name": "qwen", "app.kubernetes.io/managed-by": "bladellm"},
            "annotations": {CHANGE_CAUSE: "new model\x1b[2J\x1b]0;owned\x07"},
        },
        "revision": 1,
        "data": {},
    }
    cluster.put(llm(), revision)
    last = run("rollout", "history", "qwen").splitlines()[-1]
    assert last.split() == ["1", "3bb83307", "-", "new", "model\\e[2J\\e]0;owned\\a"]


def test_blade_operator_has_the_same_words(cluster: FakeCluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.put(llm())
    assert operator_program.main(["status", "--kubeconfig", str(cluster.kubeconfig)]) == 0
    assert "llm/qwen" in capfd.readouterr().out
