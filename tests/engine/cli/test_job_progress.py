"""How far a program is, as an API server, or the local runtime's file, gets to hear it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.quantize_runs import BLOCKS, SIZES, quantize
from engine_support.tiny_models import save_model

from blade_llm.cli.progress import job
from blade_llm.cli.progress.job import ProgressReport, annotate, job_progress, publisher
from blade_protocol.environment import PROGRESS_FILE, PROGRESS_JOB
from blade_protocol.labels import PROGRESS


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """What Kubernetes mounts into a pod."""
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "namespace").write_text("team")
    (folder / "token").write_text("secret\n")
    return folder


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, dict[str, str], Any]], list[int]]]:
    """An API server: its address, the requests that it got, and the statuses that it will give."""
    requests: list[tuple[str, dict[str, str], Any]] = []
    statuses: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append((self.path, dict(self.headers.items()), body))
            self.send_response(statuses.pop(0) if statuses else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}", requests, statuses
        running.shutdown()
        thread.join()


def test_the_request_is_a_patch_of_one_annotation_of_one_job(
    server: tuple[str, list[Any], list[int]], account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the pod's own token, and not through a proxy for the world outside."""
    url, requests, _ = server
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    annotate(url, "w4", "half", account)
    [(path, headers, body)] = requests
    assert path.partition("?")[0] == "/apis/batch/v1/namespaces/team/jobs/w4"
    assert body == {"metadata": {"annotations": {PROGRESS: "half"}}}
    assert headers["Authorization"] == "Bearer secret"
    assert headers["Content-Type"] == "application/merge-patch+json"


def test_a_refusal_is_said_once_and_the_work_goes_on(
    server: tuple[str, list[Any], list[int]], account: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, requests, statuses = server
    statuses += [403, 500]
    report = ProgressReport(lambda line: annotate(url, "w4", line, account), 0.0)
    for number in range(1, 4):
        report.say(str(number))
        until = time.monotonic() + 10
        while len(requests) < number and time.monotonic() < until:
            time.sleep(0.01)
    report.end()
    assert [body["metadata"]["annotations"][PROGRESS] for _, _, body in requests] == ["1", "2", "3"]
    assert capsys.readouterr().err.count("progress is not shown: HTTP Error 403: Forbidden; the work goes on") == 1


def test_without_a_server_or_an_account_nothing_fails(account: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = ProgressReport(lambda line: annotate("http://127.0.0.1:1", "w4", line, account), 0.0)
    report.end("done")
    report = ProgressReport(lambda line: annotate("http://127.0.0.1:1", "w4", line, account / "nothing"), 0.0)
    report.end("done")
    assert capsys.readouterr().err.count("progress is not shown") == 2


def test_lines_in_between_are_left_out_and_the_last_is_not() -> None:
    said: list[str] = []
    report = ProgressReport(said.append, 1e6)
    report.say("first")
    until = time.monotonic() + 10
    while not said and time.monotonic() < until:
        time.sleep(0.01)
    for number in range(100):
        report.say(str(number))
    report.end("last")
    assert said == ["first", "last"]


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("model.layers.4.mlp.up_proj.weight", "layer 5 of 24"),
        ("a try, transformer.h.11.attn.weight", "a try, layer 12 of 24"),
        ("smoothing, layer 2, exponent 0.5", "smoothing, layer 3 of 24"),
        ("model.embed_tokens.weight", "model.embed_tokens.weight"),
    ],
)
def test_it_names_phase_layer_share_and_time_left(name: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((100.0, 110.0))
    monkeypatch.setattr(job.time, "monotonic", lambda: next(clock))
    said: list[str] = []
    shown: list[tuple[str, int]] = []
    report = ProgressReport(lambda line: None)
    monkeypatch.setattr(report, "say", said.append)
    start = report.counted("quantising", 24, lambda total: lambda *each: shown.append(each))
    start(400)(name, 100)
    assert said == [f"quantising: {where}, 25 %, about 30 s left"]
    assert shown == [(name, 100)]


def test_the_environment_says_where(tmp_path: Path, account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert publisher({}) is None
    assert publisher({PROGRESS_JOB: "w4"}) is None
    assert publisher({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}) is None
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(job, "annotate", lambda *each: found.append(each))
    for host, address in (("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]")):
        publish = publisher(
            {PROGRESS_JOB: "w4", "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}, account
        )
        assert publish is not None
        publish("half")
        assert found.pop() == (f"https://{address}:6443", "w4", "half", account)


def test_a_run_leaves_what_it_saved_or_why_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(tmp_path / "whole", "llama", torch.bfloat16, **SIZES)
    monkeypatch.setenv(PROGRESS_FILE, str(tmp_path / "progress"))
    assert quantize(tmp_path / "whole", tmp_path / "small", *BLOCKS) == 0
    assert (tmp_path / "progress").read_text().endswith("bits a quantised weight")
    with pytest.raises(ZeroDivisionError), job_progress():
        print(1 / 0)
    assert (tmp_path / "progress").read_text() == "stopped: ZeroDivisionError"
