"""A message whose engine dies: an error before its first event, and an event after it. One whose client leaves ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
from engine_support.anthropic_events import events_of
from engine_support.server_process import ServerProcess, running_server

BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1900, "ignore_eos": True}


def test_an_engine_that_dies_in_mid_stream(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model) as server:
        url = f"{server.url}/v1/messages"
        with httpx.stream("POST", url, json={**BODY, "stream": True}, timeout=60) as response:
            lines = []
            for line in response.iter_lines():
                lines.append(line)
                if len(lines) == 40:
                    os.kill(server.engine_pid, signal.SIGKILL)
    *events, last = events_of("\n".join([*lines, ""]))
    assert (events[0]["type"], last["type"], last["error"]["type"]) == ("message_start", "error", "overloaded_error")
    assert last["request_id"] == response.headers["request-id"]
    assert last["error"]["message"]


def test_a_server_that_drains_sends_clients_elsewhere(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model) as server:
        httpx.post(f"{server.internal_url}/internal/drain", json={}, timeout=60)
        refused = server.post("/v1/messages", **BODY)
    assert (refused.status_code, refused.json()["error"]["type"]) == (503, "overloaded_error")
    assert (refused.headers["retry-after"], refused.headers["x-blade-draining"]) == ("1", "1")


def test_a_client_that_leaves_frees_everything(server: ServerProcess) -> None:
    server.wait_idle()
    with httpx.stream("POST", f"{server.url}/v1/messages", json={**BODY, "stream": True}, timeout=60) as response:
        for _ in response.iter_lines():
            break
    state = server.wait_idle()
    assert state["kv_blocks_free"] == state["kv_blocks_total"]
