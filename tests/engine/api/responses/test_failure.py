"""A stream that fails ends with an event that says so; one whose client leaves ends at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import msgspec
from engine_support.openai_streams import check_response_stream
from engine_support.server_process import ServerProcess, running_server

BODY = {"input": "hello", "ignore_eos": True, "stream": True}


def test_an_engine_that_dies_in_mid_stream(tmp_path: Path, text_model: Path) -> None:
    with running_server(tmp_path, text_model) as server:
        with httpx.stream("POST", f"{server.url}/v1/responses", json=BODY, timeout=60) as response:
            lines = []
            for line in response.iter_lines():
                lines.append(line)
                if len(lines) == 40:
                    os.kill(server.engine_pid, signal.SIGKILL)
    events = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert lines[-3] == "event: response.failed"
    last = events[-1]
    assert last["sequence_number"] == len(events) - 1
    failed = last["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["error"]["message"]
    begun = [event for event in events[:-1] if event["type"] in ("response.created", "response.in_progress")]
    renumbered = [*begun, {**last, "sequence_number": 2, "response": {**failed, "output": []}}]
    check_response_stream(renumbered)


def test_a_client_that_leaves_frees_everything(server: ServerProcess) -> None:
    server.wait_idle()
    with httpx.stream("POST", f"{server.url}/v1/responses", json=BODY, timeout=60) as response:
        for _ in response.iter_lines():
            break
    state = server.wait_idle()
    assert state["kv_blocks_free"] == state["kv_blocks_total"]
