"""HTTP as clients expect it, and comments in streams that wait: over raw sockets."""

from __future__ import annotations

import contextlib
import email.utils
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from engine_support.fake_engine import LONG_STEP, LONG_STEP_SECONDS
from engine_support.server_process import ServerProcess, running_server

from blade_protocol import headers

COMMENT = b": keep-alive\n\n"
WAITS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": [LONG_STEP], "max_tokens": 2, "stream": True},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": True},
    "/v1/responses": {"input": "x", "max_output_tokens": 2, "stream": True},
}


def exchange(server: ServerProcess, method: str, target: str, *lines: str, body: bytes = b"") -> tuple[str, bytes]:
    """The head of the response, names in lower case, and its body, still in chunks."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    head = [f"{method} {target} HTTP/1.1", "host: localhost", "connection: close", *lines]
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall("\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body)
        received = b""
        while data := sock.recv(1 << 16):
            received += data
    found, _, rest = received.partition(b"\r\n\r\n")
    return found.decode().lower(), rest


def header(head: str, name: str) -> str | None:
    return next((line.partition(": ")[2] for line in head.split("\r\n") if line.startswith(f"{name}: ")), None)


def status(head: str) -> int:
    return int(head.split()[1])


@pytest.mark.parametrize(
    "target",
    [
        *("/v1/models", "/v1/models/", "//v1/models", "///v1/models//", "//v1/models/?a=b"),
        *("http://localhost/v1/models", "HTTPS://localhost:8081//v1/models/"),
    ],
)
def test_paths_as_people_type_them(server: ServerProcess, target: str) -> None:
    head, body = exchange(server, "GET", target)
    assert (status(head), header(head, "location")) == (200, None)
    assert json.loads(body)["data"][0]["id"] == "tiny-chat"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        *((target, 404) for target in ("/v1/", "/v1/nothing/", "//", "/v1//models", "http://localhost", "/models")),
        *((target, 404) for target in ("/v1/models/org/name", "/v1/models/org/name/", "/v1/models/tiny-chat/x")),
        *((target, 400) for target in ("*", "localhost:80", "ftp://localhost/v1/models", "http:///v1/models")),
    ],
)
def test_what_is_not_there_is_an_openai_error_and_no_redirect(
    server: ServerProcess, target: str, expected: int
) -> None:
    head, body = exchange(server, "GET", target)
    assert (status(head), header(head, "location")) == (expected, None)
    assert json.loads(body)["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny-chat", "/health", "/ping", "/version", "/docs"])
def test_head_is_what_get_is_without_the_body(server: ServerProcess, path: str) -> None:
    whole, body = exchange(server, "GET", path)
    head, nothing = exchange(server, "HEAD", path)
    assert (status(head), nothing) == (status(whole), b"") == (200, b"")
    assert header(head, "content-length") == str(len(body))


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", "post"),
        ("HEAD", "/v1/completions", "post"),
        ("PUT", "/v1/models", "get, head"),
        ("OPTIONS", "/v1/models/a/b", "get, head"),
        ("DELETE", "/ping", "get, head, post"),
        ("PUT", "/v1/responses/resp_1", "delete, get, head, post"),
    ],
)
def test_a_405_says_what_is_allowed(server: ServerProcess, method: str, path: str, allowed: str) -> None:
    head, _ = exchange(server, method, path)
    assert (status(head), header(head, "allow")) == (405, allowed)


@pytest.mark.parametrize("target", ["/live", "/nothing", "*", "/v1/models"])
def test_every_response_has_one_date(server: ServerProcess, target: str) -> None:
    head, _ = exchange(server, "GET", target)
    dates = [line for line in head.split("\r\n") if line.startswith("date: ")]
    assert len(dates) == 1
    assert abs(email.utils.parsedate_to_datetime(dates[0][6:]).timestamp() - time.time()) < 60


def test_ping_and_load(server: ServerProcess) -> None:
    for method in ("GET", "POST"):
        assert exchange(server, method, "/ping")[1] == b'{"status":"ok"}'
    assert json.loads(exchange(server, "GET", "/load")[1]).keys() == {"server_load"}


@pytest.fixture(scope="module")
def commenting(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Iterator[ServerProcess]:
    flags = ("--stream_comment_interval", "0.4", "--enable_tokenizer_info_endpoint", "true", "--max_num_seqs", "8")
    with running_server(tmp_path_factory.mktemp("commenting"), text_model, *flags) as process:
        yield process


def stream(server: ServerProcess, path: str, *lines: str) -> tuple[str, list[bytes]]:
    """The head of a stream that waits, and its blocks."""
    body = json.dumps(WAITS[path]).encode()
    head, chunks = exchange(server, "POST", path, "content-type: application/json", *lines, body=body)
    data = b""
    while (size := int(chunks.partition(b"\r\n")[0], 16)) > 0:
        chunks = chunks.partition(b"\r\n")[2]
        data, chunks = data + chunks[:size], chunks[size + 2 :]
    return head, [block + b"\n\n" for block in data.split(b"\n\n")[:-1]]


@contextlib.contextmanager
def busy(server: ServerProcess) -> Iterator[None]:
    """The engine computes for long: what comes waits."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        with client.completions.create(model="tiny-chat", prompt=[LONG_STEP], max_tokens=1, stream=True, timeout=60):
            yield  # its head came with the first comment, so the step has begun


@pytest.mark.parametrize("path", WAITS)
def test_a_stream_that_waits_gets_comments(commenting: ServerProcess, path: str) -> None:
    with busy(commenting):
        head, blocks = stream(commenting, path)
    assert status(head) == 200
    assert (header(head, "content-type") or "").startswith("text/event-stream")
    assert blocks[:2] == [COMMENT, COMMENT], "while nothing else comes"
    assert blocks.count(COMMENT) <= 2 * LONG_STEP_SECONDS / 0.4
    events = [block for block in blocks if block != COMMENT]
    assert events
    assert all(b"data: " in block for block in events)


@pytest.mark.parametrize("path", WAITS)
def test_a_stream_that_begins_with_a_comment_says_what_was_left_out(commenting: ServerProcess, path: str) -> None:
    """And what its output is not held to: both are known before the engine gets the request."""
    schema = {"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 9}, "uniqueItems": True}
    body = {**WAITS[path], "prompt": "x", "guided_json": schema, "nobody_knows": 1}
    if path != "/v1/completions":
        del body["prompt"]
    with busy(commenting):
        lines = ("content-type: application/json",)
        head, chunks = exchange(commenting, "POST", path, *lines, body=json.dumps(body).encode())
    assert status(head) == 200
    assert chunks.partition(b"\r\n")[2].startswith(COMMENT)
    assert header(head, headers.IGNORED) == "nobody_knows"
    assert header(head, headers.UNHELD) == "#/uniqueitems"  # in lower case as all of the head


def test_the_router_gets_none(commenting: ServerProcess) -> None:
    """Also where it may have to resume the stream: comments there are token ids."""
    for lines in ((f"{headers.COMMENTS}: 0",), (f"{headers.STREAM_IDS}: 1",)):
        _, blocks = stream(commenting, "/v1/completions", *lines)
        assert COMMENT not in blocks


def test_an_openai_client_sees_the_error_that_comes_after_a_comment(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model, "--stream_comment_interval", "0.2") as server:
        begun = server.client.completions.create(model="tiny-chat", prompt=[LONG_STEP], max_tokens=2, stream=True)
        answered = server.client.responses.create(model="tiny-chat", input="x", stream=True)
        os.kill(server.engine_pid, signal.SIGKILL)
        with pytest.raises(openai.APIError, match="engine is gone"):
            list(begun)
        assert [event.type for event in answered] == ["response.created", "response.in_progress", "response.failed"]


def test_the_tokenizer_is_shown_where_that_is_wanted(server: ServerProcess, commenting: ServerProcess) -> None:
    head, body = exchange(server, "GET", "/tokenizer_info")
    assert status(head) == 404
    assert "--enable_tokenizer_info_endpoint" in json.loads(body)["error"]["message"]
    shown = json.loads(exchange(commenting, "GET", "/tokenizer_info")[1])
    assert shown["eos_token"] == "<|im_end|>"
    assert "{%" in shown["chat_template"]
    assert shown["tokenizer_class"]
