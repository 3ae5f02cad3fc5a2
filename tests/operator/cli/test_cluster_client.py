"""Rollout commands on a cluster: the requests that an API server gets, and its refusals in one line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from operator_support.mini_cluster import MiniCluster, service

from blade_operator import main as program
from blade_operator.model.objects import Object

ONE = "/apis/serving.bladellm.io/v1alpha1/namespaces/team/llmservices/qwen"
JOBS = "/apis/batch/v1/namespaces/team/jobs"
REVISIONS = "/apis/apps/v1/namespaces/team/controllerrevisions"


class Server:
    """Knows one service and its revisions; a write needs the version that was read."""

    def __init__(self) -> None:
        cluster = MiniCluster(service(resourceVersion="7"))
        cluster.converge()
        cluster.edit(engine={"maxNumSeqs": 8})
        cluster.converge()
        self.service = cluster.service
        self.revisions = [obj for ref, obj in cluster.objects.items() if ref.kind == "ControllerRevision"]
        self.requests: list[str] = []
        self.jobs: list[Object] = []

    def edit(self) -> None:
        """Somebody else writes the service."""
        version = str(int(self.service["metadata"]["resourceVersion"]) + 1)
        self.service = {**self.service, "metadata": {**self.service["metadata"], "resourceVersion": version}}

    def respond(self, method: str, target: str, body: Object) -> tuple[int, Object]:
        self.requests.append(f"{method} {target}")
        path = target.partition("?")[0]
        if path == JOBS:
            if any(each["metadata"]["name"] == body["metadata"]["name"] for each in self.jobs):
                return 409, {"kind": "Status", "reason": "AlreadyExists", "message": 'jobs.batch "w4" already exists'}
            self.jobs.append(body)
            return 201, body
        if path == REVISIONS:
            return 200, {"items": self.revisions}
        if path != ONE:
            return 404, {"kind": "Status", "reason": "NotFound", "message": f'"{path.rpartition("/")[2]}" not found'}
        if method == "PUT":
            if body["metadata"]["resourceVersion"] != self.service["metadata"]["resourceVersion"]:
                return 409, {"kind": "Status", "reason": "Conflict", "message": "the object has been modified"}
            self.service = body
        return 200, self.service


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server()

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            status, response = made.respond(self.command, self.path, json.loads(self.rfile.read(length) or b"{}"))
            data = json.dumps(response).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = _respond

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{listening.server_port}"}}],
        "users": [{"name": "a", "user": {}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    yield made
    listening.shutdown()
    thread.join()
    listening.server_close()


def run(folder: Path, *args: str) -> int:
    return program.main(["rollout", *args, "-n", "team", "--kubeconfig", str(folder / "kubeconfig")])


def test_undo_reads_the_service_and_its_revisions_and_writes_the_version_it_has_read(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "undo", "llm/qwen") == 0
    assert "went back to revision 1" in capsys.readouterr().out
    assert server.service["spec"]["engine"].get("maxNumSeqs") is None
    read, listed, written = server.requests
    assert read == f"GET {ONE}"
    assert listed.startswith(f"GET {REVISIONS}?labelSelector=")
    assert "serving.bladellm.io/name%3Dqwen" in listed.replace("%2F", "/")
    assert written.startswith(f"PUT {ONE}?")
    assert "fieldManager=blade_operator" in written


def test_refusals_are_the_servers_words(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "pause", "nobody") == 1
    assert capsys.readouterr().err == 'error: "nobody" not found\n'
    respond = server.respond

    def edited_meanwhile(method: str, target: str, body: Object) -> tuple[int, Object]:
        if method == "PUT":
            server.edit()
        return respond(method, target, body)

    server.respond = edited_meanwhile  # type: ignore[method-assign]
    assert run(tmp_path, "pause", "qwen") == 1
    assert capsys.readouterr().err == "error: the object has been modified\n"


def test_a_service_that_changed_while_it_was_edited_is_read_again(server: Server, tmp_path: Path) -> None:
    respond = server.respond

    def edited_once(method: str, target: str, body: Object) -> tuple[int, Object]:
        if method == "PUT":
            server.respond = respond  # type: ignore[method-assign]
            server.edit()
        return respond(method, target, body)

    server.respond = edited_once  # type: ignore[method-assign]
    assert run(tmp_path, "pause", "qwen") == 0
    assert server.service["spec"]["rollout"]["paused"] is True
    assert [line.split()[0] for line in server.requests] == ["GET", "PUT", "GET", "PUT"]


def test_a_job_is_created_once(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["quantize", "w4", "--model", "pvc://m/qwen", "--output_dir", "pvc://m/w4", "-n", "team", "--apply"]
    argv += ["--kubeconfig", str(tmp_path / "kubeconfig")]
    assert program.main(argv) == 0
    said = capsys.readouterr().out
    assert said == ("job.batch/w4 created\nProgress: kubectl logs -n team -f job/w4; then serve pvc://m/w4\n")
    [job] = server.jobs
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["blade_llm_quantize"]
    assert server.requests[0].startswith(f"POST {JOBS}?")
    assert program.main(argv) == 1
    assert capsys.readouterr().err == 'error: jobs.batch "w4" already exists\n'


def test_what_a_job_reports_its_progress_with_is_created_before_it_unless_it_is_there(
    server: Server, tmp_path: Path
) -> None:
    respond, made = server.respond, []

    def with_accounts(method: str, target: str, body: Object) -> tuple[int, Object]:
        if target.startswith(JOBS):
            return respond(method, target, body)
        made.append(f"{method} {target.partition('?')[0].rpartition('/')[2]}")
        if body["kind"] == "Role":
            return 409, {"kind": "Status", "reason": "AlreadyExists", "message": "it already exists"}
        return 201, body

    server.respond = with_accounts  # type: ignore[method-assign]
    argv = ["quantize", "w4", "--model", "pvc://m/qwen", "--output_dir", "pvc://m/w4", "-n", "team", "--apply"]
    assert program.main([*argv, "--report_progress", "--kubeconfig", str(tmp_path / "kubeconfig")]) == 0
    assert made == ["POST serviceaccounts", "POST roles", "POST rolebindings"]
    [job] = server.jobs
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "w4-progress"


def test_without_a_cluster_the_option_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "history", "qwen") == 1
    assert "no way to a cluster" in capsys.readouterr().err
