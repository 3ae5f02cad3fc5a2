"""How a server ends: drained, at once, or because one of its two processes died. Nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from engine_support.fake_engine import LONG_STEP, LONG_STEP_SECONDS, POISON
from engine_support.server_process import ServerProcess, gone, running_server, wait_until

from blade_protocol import headers

LONG: dict[str, Any] = {"prompt": "hello", "max_tokens": 200, "ignore_eos": True, "temperature": 0}


@contextmanager
def _streaming(server: ServerProcess, **fields: Any) -> Iterator[Iterator[str]]:
    """The lines of a stream that has begun."""
    body = {**LONG, **fields, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as response:
        lines = (line for line in response.iter_lines() if line)
        assert next(lines).startswith("data: {")
        yield lines


def test_sigterm_drains(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model) as server:
        with _streaming(server) as lines:
            server.signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
            refused = server.post("/v1/completions", prompt="x")
            assert refused.status_code == 503
            assert refused.headers[headers.DRAINING] == "1"
            assert refused.headers["retry-after"]
            taken_back = httpx.post(f"{server.internal_url}/internal/drain", json={"draining": False})
            assert taken_back.json()["draining"] is True, "a server that ends stays so"
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(20) == 0
        assert gone(server.engine_pid)
        assert list(server.sockets.iterdir()) == []


def test_a_drain_that_takes_too_long_is_cut(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model, "--drain_timeout", "0.3") as server:
        with (
            httpx.stream("GET", f"{server.internal_url}/internal/events", timeout=60) as events,
            _streaming(server, max_tokens=2000) as lines,
        ):
            server.signal(signal.SIGINT)
            rest = list(lines)
            states = [line for line in events.iter_lines() if line.startswith("data: ")]
        assert json.loads(states[-1].removeprefix("data: "))["draining"] is True
        assert "shutting down" in json.loads(rest[-1].removeprefix("data: "))["error"]["message"]
        assert server.process.wait(20) == 0


def test_a_second_sigterm_changes_nothing(tmp_path: Path, text_model: Path) -> None:
    """A kubelet that was restarted sends another one."""
    with running_server(tmp_path, text_model) as server:
        with _streaming(server) as lines:
            for _ in range(3):
                server.signal(signal.SIGTERM)
                wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
            rest = list(lines)
        assert rest[-1] == "data: [DONE]"
        assert server.process.wait(20) == 0


def test_an_interrupt_while_it_drains_ends_at_once(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model) as server:
        with _streaming(server, max_tokens=2000) as lines:
            server.signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
            server.signal(signal.SIGINT)
            with pytest.raises(httpx.TransportError):
                list(lines)
        assert server.process.wait(20) == 1
        wait_until(lambda: gone(server.engine_pid))
        assert list(server.sockets.iterdir()) == []


def test_an_engine_that_raises_is_reported(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model) as server:
        with _streaming(server, max_tokens=2000) as lines:
            unary = server.post("/v1/completions", prompt=[POISON, 5])
            rest = list(lines)
        assert unary.status_code == 503
        assert "poisoned prompt" in unary.json()["error"]["message"]
        assert unary.headers["retry-after"]
        assert "poisoned prompt" in json.loads(rest[-1].removeprefix("data: "))["error"]["message"]
        assert server.process.wait(20) == 1
        assert "Traceback" in server.output
        assert "launch_forward" in server.output
        assert "the engine failed: RuntimeError: poisoned prompt" in server.output.splitlines()[-1]


def test_a_killed_engine_fails_open_requests(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model) as server:
        errors: list[Exception] = []

        def stream() -> None:
            fields: dict[str, Any] = {**LONG, "max_tokens": 2000}
            extra = {"ignore_eos": fields.pop("ignore_eos")}
            try:
                for _ in server.client.completions.create(model="tiny-chat", stream=True, extra_body=extra, **fields):
                    pass
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=stream) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: server.state()["running"] == 3)
        os.kill(server.engine_pid, signal.SIGKILL)
        for thread in threads:
            thread.join(30)
        assert len(errors) == 3
        assert all(isinstance(error, openai.APIError) and "SIGKILL" in str(error) for error in errors)
        assert server.process.wait(20) == 1
        assert "SIGKILL" in server.output


def test_live_fails_while_the_engine_hangs(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model, "--live_timeout", "0.2") as server:

        def live() -> int:
            return httpx.get(f"{server.url}/live").status_code

        os.kill(server.engine_pid, signal.SIGSTOP)
        assert live() == 200, "without work nothing is wrong"
        os.kill(server.engine_pid, signal.SIGCONT)
        with _streaming(server, max_tokens=100) as lines:
            os.kill(server.engine_pid, signal.SIGSTOP)
            wait_until(lambda: live() == 503)
            os.kill(server.engine_pid, signal.SIGCONT)
            wait_until(lambda: live() == 200)
            assert list(lines)[-1] == "data: [DONE]"


def test_live_is_true_through_a_long_step(tmp_path: Path, text_model: Path) -> None:
    timeout = LONG_STEP_SECONDS / 2
    with running_server(tmp_path, text_model, "--live_timeout", str(timeout), "--api_server_count", "2") as server:
        with ThreadPoolExecutor() as pool:
            request = pool.submit(server.post, "/v1/completions", prompt=[LONG_STEP], max_tokens=1, ignore_eos=True)
            statuses = set()
            while not request.done():
                statuses.add(httpx.get(f"{server.url}/live").status_code)
            assert request.result().status_code == 200
        assert statuses == {200}


def test_a_killed_supervisor_takes_the_engine_with_it(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model) as server:
        with _streaming(server, max_tokens=2000) as lines:
            os.kill(server.process.pid, signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                list(lines)
        wait_until(lambda: gone(server.engine_pid))
        assert list(server.sockets.iterdir()) == []
