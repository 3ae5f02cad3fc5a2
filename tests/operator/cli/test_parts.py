"""Parts of the command line that need no control loop: options, manifests, tables, the first prompt."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from blade_operator.cli import manifests, report
from blade_operator.cli.arguments import parse
from blade_operator.cli.errors import CommandError
from blade_operator.cli.prompt import embed, rerank, stream_chat
from blade_operator.cli.tables import pod_status_text, render
from blade_operator.cli.up import _Up
from blade_operator.cluster.local.layout import Layout
from blade_operator.model.objects import Object, Ref
from blade_protocol.labels import KIND


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["locl", "up"], "unknown command 'locl'; did you mean 'local'?"),
        (["local", "get", "llm"], "unknown command 'get'; it is a command of its own: blade_operator get"),
        (["local", "up", "--prot", "1"], "unknown option or argument '--prot'; did you mean '--port'?"),
        (["local", "up", "--port", "99999"], "'99999' is not a port"),
        (["scale", "qwen"], "--replicas"),
        (["scale", "qwen", "--replicas", "-1"], "--replicas"),
        (["apply"], "-f"),
        (["local", "up", "--model", "x", "-f", "y"], "not allowed with"),
    ],
)
def test_mistakes_in_options(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(argv)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "uri", "name"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "hf://Qwen/Qwen2.5-0.5B-Instruct", "qwen2-5-0-5b-instruct"),
        ("hf://a/b", "hf://a/b", "b"),
        ("modelscope://a/B.1", "modelscope://a/B.1", "b-1"),
        ("s3://models/qwen/v1/", "s3://models/qwen/v1/", "v1"),
        ("oci://127.0.0.1:5000/acme/tiny:v1", "oci://127.0.0.1:5000/acme/tiny:v1", "tiny"),
        ("oci://ghcr.io/acme/tiny@sha256:" + "0" * 64, "oci://ghcr.io/acme/tiny@sha256:" + "0" * 64, "tiny"),
        ("FOLDER/My_Model.v2", "file://FOLDER/My_Model.v2", "my-model-v2"),
        ("FOLDER/demo/model", "file://FOLDER/demo/model", "demo"),
    ],
)
def test_a_model_becomes_a_valid_manifest_that_can_be_edited(tmp_path: Path, model: str, uri: str, name: str) -> None:
    for folder in ("My_Model.v2", "demo/model"):
        (tmp_path / folder).mkdir(parents=True)
    made = manifests.for_model(model.replace("FOLDER", str(tmp_path)), 2)
    assert (made["metadata"]["name"], made["spec"]["replicas"]) == (name, 2)
    assert made["spec"]["model"]["uri"] == uri.replace("FOLDER", str(tmp_path))
    # What is downloaded is kept for the next time, whatever the service is called then.
    kept = None if uri.startswith("file://") else {"claimName": "bladellm-models"}
    assert made["spec"]["model"].get("cache") == kept
    manifests.admit(made)
    path = manifests.save(made, Layout(tmp_path / "state"))
    assert manifests.read([str(path)]) == [made] == [yaml.safe_load(path.read_text())]


def test_a_model_whose_engines_stop_when_idle_is_scaled_by_load(tmp_path: Path) -> None:
    made = manifests.admit(manifests.for_model(str(tmp_path), 2, "60s"))
    scaling = made["spec"]["scaling"]
    assert (scaling["mode"], scaling["min"], scaling["max"], scaling["idleToZero"]) == ("Concurrency", 0, 2, "60s")
    with pytest.raises(CommandError, match=r"spec\.scaling\.idleToZero"):
        manifests.admit(manifests.for_model(str(tmp_path), 2, "1s"))


@pytest.mark.parametrize(("idle", "least"), [("60s", 0), (None, 2)])
def test_a_model_one_engine_of_which_is_kept_warm(tmp_path: Path, idle: str | None, least: int) -> None:
    scaling = manifests.admit(manifests.for_model(str(tmp_path), 2, idle, 1))["spec"]["scaling"]
    assert (scaling["mode"], scaling["min"], scaling["max"], scaling["standby"]) == ("Concurrency", least, 2, 1)
    assert scaling.get("idleToZero") == idle


def test_a_model_that_is_nothing_is_refused() -> None:
    for model in ("/nowhere/at/all", "s3://bucket", "pvc://claim/folder", "gs://models/x"):
        with pytest.raises(CommandError, match="no such folder"):
            manifests.for_model(model, 1)


def _pod(init: list[Object], main: Object, **metadata: Any) -> Object:
    statuses = [{"name": "c", "lastState": {}, "restartCount": 0, "ready": False, **each} for each in [*init, main]]
    return {
        "metadata": metadata,
        "spec": {"containers": [{}]},
        "status": {"phase": "Pending", "initContainerStatuses": statuses[:-1], "containerStatuses": statuses[-1:]},
    }


_WAITING = {"state": {"waiting": {"reason": "PodInitializing"}}}
_DONE = {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
_RUNNING = {"state": {"running": {}}}
_LOOP = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}


@pytest.mark.parametrize(
    ("pod", "word"),
    [
        (_pod([], _RUNNING), "Running"),
        (_pod([_RUNNING, _WAITING], _WAITING), "Init:0/2"),
        (_pod([_DONE, _RUNNING], _WAITING), "Init:1/2"),
        (_pod([_LOOP], _WAITING), "Init:CrashLoopBackOff"),
        (_pod([{"state": {"terminated": {"exitCode": 1, "reason": "Error"}}}], _WAITING), "Init:Error"),
        (_pod([_DONE], _LOOP), "CrashLoopBackOff"),
        (_pod([_DONE], _RUNNING, deletionTimestamp="x"), "Terminating"),
    ],
)
def test_the_status_column_of_a_pod(pod: Object, word: str) -> None:
    assert pod_status_text(pod) == word


def test_tables_line_up_and_go_on_where_they_were() -> None:
    widths: list[int] = []
    first = list(render([[("NAME", "a-long-name"), ("AGE", "1s")]], widths))
    assert first == ["NAME          AGE", "a-long-name   1s"]
    assert list(render([[("NAME", "b"), ("AGE", "2s")]], widths, header=False)) == ["b             2s"]


def _service(**status: Any) -> Object:
    return {"metadata": {"name": "qwen", "uid": "u", "generation": 2}, "spec": {}, "status": status}


def test_ready_counts_only_for_the_present_spec() -> None:
    ready = [{"type": "Ready", "status": "True"}]
    assert report.is_ready(_service(observedGeneration=2, conditions=ready))
    assert not report.is_ready(_service(observedGeneration=1, conditions=ready))
    assert not report.is_ready(_service(observedGeneration=2, conditions=[{"type": "Ready", "status": "False"}]))


@pytest.mark.parametrize(
    ("failure", "hopeless"),
    [
        ({"reason": "Error", "restarts": 1}, False),
        ({"reason": "CrashLoopBackOff", "restarts": 2}, True),
        ({"reason": "CreateContainerConfigError", "restarts": 0}, True),
    ],
)
def test_when_waiting_is_in_vain(failure: Object, hopeless: bool) -> None:
    assert report.is_stalled(_service(failures=[failure])) == hopeless


def test_the_explanation_begins_with_the_check_that_failed() -> None:
    items = [{"name": "shm", "status": "PASS"}, {"name": "memoryFit", "status": "FAILED", "detail": "needs 9 GiB"}]
    failure = {"pod": "p", "lastLog": "cannot reach the hub", "message": "fetch failed (exit 1)"}
    assert report.explanation(_service(preflight=[{"items": items}], failures=[failure])) == [
        "memoryFit: FAILED: needs 9 GiB",
        "cannot reach the hub",
        "p: fetch failed (exit 1)",
    ]


async def _served(head: bytes, lines: list[bytes], how: Any = stream_chat) -> tuple[list[str], str, Object]:
    """What ``stream_chat`` writes and returns when the service responds with the events ``lines``, and its request."""
    request: Object = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = await reader.readuntil(b"\r\n\r\n")
        request["line"] = received.split(b"\r\n")[0].decode()
        request["keys"] = [line.decode() for line in received.split(b"\r\n") if line.startswith(b"authorization")]
        length = next(int(line.split(b":")[1]) for line in received.lower().split(b"\r\n") if b"content-length" in line)
        request["body"] = json.loads(await reader.readexactly(length))
        events = [b"data: " + line + b"\n\n" for line in lines]
        writer.write(head + b"Connection: close\r\n\r\n" + b"".join(lines if how is not stream_chat else events))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        pieces: list[str] = []
        figures = await how(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", "Why?", pieces.append)
    return pieces, figures, request


_OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


async def test_a_response_is_printed_piece_by_piece() -> None:
    chunks: list[Object] = [{"choices": [{"delta": {"content": text}}]} for text in ("It ", "counts.")]
    chunks.append({"choices": [], "usage": {"completion_tokens": 2}})
    pieces, figures, request = await _served(_OK, [*(json.dumps(chunk).encode() for chunk in chunks), b"[DONE]"])
    assert pieces == ["It ", "counts."]
    assert figures.startswith("2 tokens, the first after ")
    assert request["line"] == "POST /v1/chat/completions HTTP/1.1"
    assert request["body"]["messages"] == [{"role": "user", "content": "Why?"}]
    thought: list[Object] = [{"choices": [{"delta": {"reasoning_content": "Hm. "}}]}, *chunks]
    pieces, _, _ = await _served(_OK, [*(json.dumps(chunk).encode() for chunk in thought), b"[DONE]"])
    assert pieces == ["Hm. ", "It ", "counts."]


async def test_a_score_is_printed() -> None:
    body = {"results": [{"index": 0, "relevance_score": 0.75}], "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    pieces, figures, request = await _served(head, [json.dumps(body).encode()], rerank)
    assert "".join(pieces) == "0.7500"
    assert figures.startswith("a score for 7 tokens, after ")
    assert request["line"] == "POST /v1/rerank HTTP/1.1"
    assert request["body"] == {"query": "Why?", "documents": ["Why?"]}


async def test_an_embedding_is_printed_as_its_length() -> None:
    body = {"data": [{"embedding": [0.5, -0.25, 0.125, 1, 2, 3]}], "usage": {"prompt_tokens": 7, "total_tokens": 7}}
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    pieces, figures, request = await _served(head, [json.dumps(body).encode()], embed)
    assert pieces == ["[0.5000, -0.2500, 0.1250, 1.0000, ...]"]
    assert figures.startswith("6 numbers for 7 tokens, after ")
    assert (request["line"], request["body"]) == ("POST /v1/embeddings HTTP/1.1", {"input": "Why?"})
    assert request["keys"] == []
    with pytest.raises(CommandError, match="answered 503"):
        await _served(b"HTTP/1.1 503 Service Unavailable\r\n", [], embed)


async def test_a_request_carries_the_api_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = b"HTTP/1.1 401 Unauthorized\r\n"
    with pytest.raises(CommandError, match=r"answered 401: .*; set OPENAI_API_KEY to one of its keys"):
        await _served(refused, [])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    _, _, request = await _served(_OK, [b"[DONE]"], partial(stream_chat, with_key=True))
    assert request["keys"] == ["authorization: Bearer sk-1"]


@pytest.mark.parametrize(
    ("router", "keys"),
    [
        ({"auth": {"keysSecret": {"name": "keys"}}}, ["authorization: Bearer sk-1"]),
        ({"replicas": 1}, []),  # nobody would take it out of the request before an engine sees it
    ],
)
async def test_only_a_service_with_keys_is_shown_one(
    router: Object, keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    up = _Up(Layout(tmp_path), parse(["local", "up", "--model", "m", "--ask", "Why?"]), [])

    async def welcome(url: str, question: str, write: Any) -> str:
        service = {"spec": {"router": router}, "status": {"url": url}}
        runtime: Any = SimpleNamespace(store=SimpleNamespace(get=lambda ref: service))
        await up._send_first_request(runtime, Ref(KIND, "default", "qwen"))
        return ""

    _, _, request = await _served(_OK, [b"[DONE]"], welcome)
    assert request["keys"] == keys


async def test_a_refusal_and_a_broken_response_are_errors() -> None:
    with pytest.raises(CommandError, match="answered 503"):
        await _served(b"HTTP/1.1 503 Service Unavailable\r\n", [])
    with pytest.raises(CommandError, match="broke off: engine gone"):
        await _served(_OK, [b'{"error": {"message": "engine gone"}}'])


async def test_a_stop_in_the_same_moment_as_a_change_is_not_lost(tmp_path: Path) -> None:
    up = _Up(Layout(tmp_path), parse(["local", "up"]), [])

    async def follow() -> None:
        while True:
            await up._next_change()

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.05)
    up._changed.set()
    await asyncio.sleep(0)  # the wait inside has ended, the one around it does not know yet
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=5)
    assert done
