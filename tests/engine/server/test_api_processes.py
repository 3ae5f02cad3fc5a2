"""Several API-server processes on one port: any of them speaks for the whole server, and they end together."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from engine_support.exposition import read_exposition
from engine_support.fake_engine import TOO_SMALL
from engine_support.server_process import TESTS, ServerProcess, gone, running_server, server_command, wait_until

from blade_protocol import headers, metrics

LONG: dict[str, Any] = {"prompt": "hello", "max_tokens": 200, "ignore_eos": True, "temperature": 0, "stream": True}
API_PROCESS = "blade_llm.server.api_process"
MANY = 24
"""Connections of which an API server gets none once in 2**23 times."""
VANISHING = """
import pathlib, sys
from blade_llm.server import process_manager
from blade_llm.cli.server import main
start = process_manager.start_api_servers
def start_without_tokenizer(*args):
    (pathlib.Path(sys.argv[1]) / "tokenizer.json").unlink()
    return start(*args)
import blade_llm.server.supervisor
blade_llm.server.supervisor.start_api_servers = start_without_tokenizer
sys.exit(main(["--model", *sys.argv[1:]], build="engine_support.fake_engine:paced"))
"""
"""A server whose model folder loses its tokenizer between the supervisor's reading and the others'."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, text_model: Path) -> Iterator[ServerProcess]:
    """Two API servers; tests may use them, not end them."""
    with _two_api_servers(tmp_path_factory.mktemp("pair"), text_model) as server:
        yield server


def _two_api_servers(folder: Path, model: Path, *flags: str) -> contextlib.AbstractContextManager[ServerProcess]:
    return running_server(folder, model, "--api_server_count", "2", *flags)


@contextlib.contextmanager
def _streams(server: ServerProcess, **fields: Any) -> Iterator[list[Iterator[str]]]:
    """The lines of streams that have begun, each on a connection of its own."""
    with contextlib.ExitStack() as stack:
        streams: list[Iterator[str]] = []
        for _ in range(MANY):
            client = stack.enter_context(httpx.Client(timeout=60, verify=False))
            request = client.stream("POST", f"{server.url}/v1/completions", json={**LONG, **fields})
            streams.append(line for line in stack.enter_context(request).iter_lines() if line)
        for lines in streams:
            assert next(lines).startswith("data: {")
        yield streams


def _get_from_all(server: ServerProcess, path: str) -> list[tuple[int, str, str | None]]:
    """The same query to every API server, each time on a new connection: status, body, and the draining header."""
    responses = []
    for _ in range(MANY):
        connection = HTTPConnection(urlsplit(server.url).netloc, timeout=20)
        connection.request("GET", path)
        response = connection.getresponse()
        responses.append((response.status, response.read().decode(), response.getheader(headers.DRAINING)))
        connection.close()
    return responses


def _statuses(server: ServerProcess, path: str) -> set[int]:
    return {status for status, _, _ in _get_from_all(server, path)}


def _connections(pid: int, server: ServerProcess) -> int:
    port = urlsplit(server.url).port
    found = psutil.Process(pid).net_connections("tcp")
    return sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port == port for c in found)


def _importing(process: psutil.Process) -> bool:
    """The interpreter runs, and has begun with what the process needs."""
    return any("msgspec" in mapped.path for mapped in process.memory_maps())


def _data(line: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return found


def test_streams_go_through_both(pair: ServerProcess) -> None:
    alone = pair.post("/v1/completions", **{**LONG, "stream": False, "max_tokens": 60}).json()["choices"][0]["text"]
    with _streams(pair, max_tokens=60) as streams:
        assert len(pair.api_server_pids) == 1
        assert _connections(pair.process.pid, pair) > 0
        assert _connections(pair.api_server_pids[0], pair) > 0
        rests = [list(lines) for lines in streams]
    for rest in rests:
        assert rest[-1] == "data: [DONE]"
        text = "".join(_data(line)["choices"][0]["text"] for line in rest[:-1])
        assert text
        assert alone.endswith(text)


def test_equal_request_ids_on_different_api_servers_do_not_collide(pair: ServerProcess) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(timeout=60, verify=False)) for _ in range(MANY)]
        body = {**LONG, "stream": False, "max_tokens": 4}
        responses = [
            c.post(f"{pair.url}/v1/completions", json=body, headers={headers.REQUEST_ID: "x"}) for c in clients
        ]
    assert {response.json()["usage"]["completion_tokens"] for response in responses} == {4}


def test_every_api_server_reports_the_metrics_of_all(pair: ServerProcess) -> None:
    def counts() -> set[float]:
        texts = [text for _, text, _ in _get_from_all(pair, "/metrics")]
        return {read_exposition(text)[f"{metrics.ENGINE_E2E}_count"] for text in texts}

    pair.wait_idle()
    (before,) = counts()
    with _streams(pair, max_tokens=5) as streams:
        for lines in streams:
            assert list(lines)[-1] == "data: [DONE]"
    assert counts() == {before + MANY}


def test_all_api_servers_drain(pair: ServerProcess) -> None:
    for draining, status in ((True, 503), (False, 200)):
        state = httpx.post(f"{pair.internal_url}/internal/drain", json={"draining": draining}).json()
        assert state["draining"] is draining
        responses = _get_from_all(pair, "/health")
        assert {(code, header) for code, _, header in responses} == {(status, "1" if draining else None)}


def test_live_fails_on_every_api_server_while_the_engine_hangs(tmp_path: Path, text_model: Path) -> None:
    with _two_api_servers(tmp_path, text_model, "--live_timeout", "0.2") as server:
        body = {**LONG, "max_tokens": 100}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
            lines = (line for line in response.iter_lines() if line)
            next(lines)
            os.kill(server.engine_pid, signal.SIGSTOP)
            wait_until(lambda: _statuses(server, "/live") == {503})
            os.kill(server.engine_pid, signal.SIGCONT)
            assert list(lines)[-1] == "data: [DONE]"
        assert _statuses(server, "/live") == {200}


def test_sigterm_drains_both_and_is_logged_once(tmp_path: Path, text_model: Path) -> None:
    with _two_api_servers(tmp_path, text_model) as server:
        with _streams(server, max_tokens=800) as streams:
            os.killpg(server.process.pid, signal.SIGTERM)  # as Ctrl-C does: all processes of the group
            wait_until(lambda: _statuses(server, "/health") == {503})
            rests = [list(lines) for lines in streams]
        assert all(rest[-1] == "data: [DONE]" for rest in rests)
        assert {_data(rest[-2])["choices"][0]["finish_reason"] for rest in rests} == {"length"}
        assert server.process.wait(20) == 0
        assert all(map(gone, [server.engine_pid, *server.api_server_pids]))
        assert server.output.count("draining:") == 1
        assert server.output.count("Entrypoint API ready") == 1
        assert list(server.sockets.iterdir()) == []


def test_a_drain_that_takes_too_long_is_cut_on_both(tmp_path: Path, text_model: Path) -> None:
    with _two_api_servers(tmp_path, text_model, "--drain_timeout", "0.3") as server:
        with _streams(server, max_tokens=2000) as streams:
            server.signal(signal.SIGTERM)
            rests = [list(lines) for lines in streams]
        assert all("shutting down" in _data(rest[-1])["error"]["message"] for rest in rests)
        assert server.process.wait(20) == 0


def test_an_api_server_that_dies_ends_the_server(tmp_path: Path, text_model: Path) -> None:
    with _two_api_servers(tmp_path, text_model) as server:
        (killed,) = server.api_server_pids
        ends: list[str] = []
        with _streams(server, max_tokens=2000) as streams:
            ours, lost = _connections(server.process.pid, server), _connections(killed, server)
            assert ours + lost == MANY
            os.kill(killed, signal.SIGKILL)
            for lines in streams:
                with contextlib.suppress(httpx.TransportError):
                    ends.append(list(lines)[-1])
        assert len(ends) == ours, "its own streams break off, the others end properly"
        errors = [_data(end)["error"]["message"] for end in ends]
        assert all(f"API server process 1 (pid {killed}) was ended by SIGKILL" in error for error in errors)
        assert server.process.wait(20) == 1
        assert server.output.splitlines()[-1].endswith(
            f"error: API server process 1 (pid {killed}) was ended by SIGKILL"
        )
        wait_until(lambda: gone(server.engine_pid))
        assert list(server.sockets.iterdir()) == []


def test_signals_to_all_while_they_start_are_reported_by_the_supervisor_alone(tmp_path: Path, text_model: Path) -> None:
    command = [*server_command(), "--model", str(text_model), "--host", "127.0.0.1"]
    flags = ["--load_format", "dummy", "--port", "0", "--api_server_count", "3"]
    with subprocess.Popen(
        [*command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=TESTS,
        start_new_session=True,
    ) as server:
        children = psutil.Process(server.pid).children
        wait_until(lambda: any(API_PROCESS in child.cmdline() and _importing(child) for child in children()))
        os.killpg(server.pid, signal.SIGINT)
        output, _ = server.communicate(timeout=60)
    assert server.returncode in (0, 130), output
    assert "Traceback" not in output


def test_the_engines_death_reaches_both(tmp_path: Path, text_model: Path) -> None:
    with _two_api_servers(tmp_path, text_model) as server:
        with _streams(server, max_tokens=2000) as streams:
            os.kill(server.engine_pid, signal.SIGKILL)
            ends = [list(lines)[-1] for lines in streams]
        assert all("SIGKILL" in _data(end)["error"]["message"] for end in ends)
        assert {_data(end)["error"]["code"] for end in ends} == {"engine_dead"}
        assert server.process.wait(20) == 1
        assert "the engine failed: engine process was ended by SIGKILL" in server.output
        assert all(map(gone, server.api_server_pids))


def test_nothing_outlives_the_supervisor(tmp_path: Path, text_model: Path) -> None:
    with _two_api_servers(tmp_path, text_model) as server:
        os.kill(server.process.pid, signal.SIGKILL)
        wait_until(lambda: all(map(gone, [server.engine_pid, *server.api_server_pids])))
        assert list(server.sockets.iterdir()) == []


@pytest.mark.parametrize("count", ["1", "2"])
def test_a_port_in_use_is_an_error(pair: ServerProcess, text_model: Path, count: str) -> None:
    port = str(urlsplit(pair.url).port)
    command = [*server_command(), "--model", str(text_model), "--host", "127.0.0.1"]
    flags = ["--load_format", "dummy", "--port", port, "--internal_port", "0", "--api_server_count", count]
    ended = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60, cwd=TESTS, check=False)
    assert ended.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in ended.stderr


def test_an_engine_that_cannot_start_ends_all_api_servers_at_once(text_model: Path) -> None:
    command = [*server_command(), "--model", str(text_model), "--host", "127.0.0.1"]
    flags = ["--load_format", "dummy", "--port", "0", "--api_server_count", "3", "--max_kv_blocks", str(TOO_SMALL)]
    ended = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60, cwd=TESTS, check=False)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.endswith("raise --max_kv_blocks to 128")


def test_an_api_server_that_cannot_start_ends_the_server(tmp_path: Path, text_model: Path) -> None:
    model = Path(shutil.copytree(text_model, tmp_path / "model"))
    command = [sys.executable, "-c", VANISHING, str(model)]
    flags = ["--host", "127.0.0.1", "--load_format", "dummy", "--port", "0", "--api_server_count", "2"]
    ended = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=60, cwd=TESTS, check=False)
    assert ended.returncode == 1
    assert "tokenizer.json is missing" in ended.stderr
    assert re.search(r"error: API server process 1 \(pid \d+\) exited with status 1$", ended.stderr.strip())
